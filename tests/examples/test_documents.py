"""What documents tell people to type exists. Their Python is run by `examples_on_ranks.py`."""

import configparser
import re
import shlex
import sys
from pathlib import Path

import documents
import pytest
from launches import run

from easyscale import exchange

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
PAGES = "".join((ROOT / path).read_text() for path in documents.PAGES)
COMMANDS = re.findall(r"```console\n(.*?)```", README + CONTRIBUTING + PAGES, re.DOTALL)
TABLES = ["docs/how_it_works.md"]


def _typed(*programs):
    """The commands in the documents' console blocks that begin with one of these programs, without variables."""
    lines = [line.removeprefix("$ ") for block in COMMANDS for line in block.splitlines() if line.startswith("$ ")]
    lines = [re.sub(r"^(\w+=\S+ )+", "", line) for line in lines]
    found = [line for line in lines if Path(shlex.split(line)[0]).name in programs]
    assert found, f"no command of {programs} in the documents"
    return list(dict.fromkeys(found))


def _easyscale(*arguments):
    return run([str(Path(sys.executable).with_name("easyscale")), *arguments], timeout=30)


def test_every_program_in_the_documents_is_tested_here():
    known = {"make", "pip", "easyscale", "mpirun", "srun", "pytest", "ruff", "python"}
    lines = [line for block in COMMANDS for line in block.splitlines() if line.startswith("$ ")]
    assert len(_typed(*known)) == len({re.sub(r"^\$ (\w+=\S+ )*", "", line) for line in lines})


@pytest.mark.parametrize("line", _typed("make"))
def test_make_has_the_target(line):
    target = shlex.split(line)[-1]
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


@pytest.mark.parametrize("line", _typed("pip"))
def test_the_package_has_the_extras(line):
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    extras = re.search(r"easyscale\[(.*?)\]", line)[1].split(",")
    assert set(extras) <= set(setup["options.extras_require"])


@pytest.mark.parametrize("line", [typed for typed in _typed("easyscale") if typed.split()[1] == "launch"])
def test_launch_takes_the_command(line, tmp_path):
    script = next(word for word in shlex.split(line) if word.endswith(".py"))
    path = ROOT / script
    if not path.exists():
        path = tmp_path / script
        path.touch()
    arguments = [str(path) if word == script else word for word in shlex.split(line)[1:]]
    done = _easyscale("launch", "--dry-run", *arguments[1:])
    assert done.returncode == 0, done.stderr
    after = arguments[arguments.index(str(path)) :]
    assert done.stdout.rstrip().endswith(shlex.join(after))


@pytest.mark.parametrize("line", [typed for typed in _typed("easyscale") if typed.split()[1] != "launch"])
def test_easyscale_has_the_command_and_its_options(line):
    arguments = shlex.split(line)[1:]
    command = [word for word in arguments if re.fullmatch("[a-z]+", word)][:2]
    options = [word for word in arguments if word.startswith("-")]
    done = _easyscale(*command, "--help")
    assert done.returncode == 0, done.stderr
    assert all(re.search(rf"{option}[ ,=]", done.stdout) for option in options)


@pytest.mark.parametrize("line", _typed("mpirun", "srun"))
def test_other_launchers_start_the_same_script(line):
    program, n, ranks, *python = shlex.split(line)
    assert (n, ranks) == ("-n", "4")
    assert f"$ easyscale launch -n 4 {shlex.join(python[1:])}\n" in README


@pytest.mark.parametrize("line", _typed("python"))
def test_python_starts_a_script_that_is_there_or_is_launched_as_well(line):
    script = shlex.split(line)[1]
    assert (ROOT / script).exists() or f"$ easyscale launch -n 2 {script}\n" in PAGES


@pytest.mark.parametrize("page", TABLES)
def test_the_table_of_exchanges_says_what_they_cost(page):
    rows = re.findall(r"^\| `([a-z_]+)` \|.*?\|.*?\| *(.*?) *\|", (ROOT / page).read_text(), re.MULTILINE)
    missing = sorted({*exchange.available()} ^ {name for name, _ in rows})
    assert not missing, f"{page}'s table of exchanges must have a row for each. Received: other ones of {missing}"
    for name, example in rows:
        cost = exchange.get(name).cost(8, 100_000_000)
        assert example == (f"{cost.steps} steps, {cost.bytes // 1_000_000} MB" if cost else "")


def test_files_that_the_documents_link_to_exist():
    links = re.findall(r"\]\(([\w./]+)\)", README + CONTRIBUTING)
    assert links
    for link in links:
        assert (ROOT / link).exists(), link
