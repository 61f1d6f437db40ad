"""Options of `easyscale launch` in a file: what they say there, what wins over them, and what is wrong in one line."""

import pytest

tomllib = pytest.importorskip("tomllib")


@pytest.fixture
def config(tmp_path):
    """A function that writes a file of options and returns its path."""

    def write(text):
        path = tmp_path / "easyscale.toml"
        path.write_text(text)
        return str(path)

    return write


def test_a_file_says_what_the_command_line_would(cli, config, script):
    path = script("")
    file = config(
        '[launch]\nnp = 2\nexchange = "tree"\nelastic = true\nstall-timeout = 7\n'
        f'script = "{path}"\narguments = ["-n", "a b"]\n'
    )
    by_file = cli("launch", "--config", file, "--dry-run")
    options = ["-n", "2", "--exchange", "tree", "--elastic", "--stall-timeout", "7", path, "-n", "a b"]
    assert by_file.exit_code == 0
    assert by_file.output == cli("launch", "--dry-run", *options).output


def test_the_command_line_wins_and_arguments_stay_with_their_script(cli, config, script):
    path, other = script(""), script("", "other.py")
    file = config(f'[launch]\nnp = 2\nexchange = "tree"\nscript = "{path}"\narguments = ["--epochs"]\n')
    won = cli("launch", "--config", file, "--exchange", "ring", "--dry-run", other).output
    assert won == cli("launch", "-n", "2", "--exchange", "ring", "--dry-run", other).output
    assert "--epochs" in cli("launch", "--config", file, "--dry-run").output


def test_what_is_printed_as_a_file_says_the_same_once_more(cli, config, script):
    options = ["-n", "3", "--elastic", "--min-workers", "2", "--stall-timeout", "7.5", "--ranks", "0,1"]
    arguments = [script(""), "--lr", "0.1", 'a "b"']
    printed = cli("launch", *options, "--print-config", *arguments)
    assert printed.exit_code == 0
    assert tomllib.loads(printed.output)["launch"] == {
        "np": 3, "elastic": True, "min-workers": 2, "stall-timeout": 7.5, "ranks": "0,1",
        "script": arguments[0], "arguments": arguments[1:],
    }  # fmt: skip
    file = config(printed.output)
    assert cli("launch", "--config", file, "--print-config").output == printed.output
    assert (
        cli("launch", "--config", file, "--dry-run").output == cli("launch", *options, "--dry-run", *arguments).output
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "[launch]\nstal-timeout = 7",
            "must be one that there is. Received: 'stal-timeout'. Did you mean 'stall-timeout'?",
        ),
        ("[launch]\nstall_timeout = 7", "Received: 'stall_timeout'. Did you mean 'stall-timeout'?"),
        ("[lunch]\nnp = 2", "must be one that there is. Received: 'lunch'. Did you mean 'launch'?"),
        ("launch = 2", "must be a table. Received: 2. Write [launch] above it"),
        ("np = 2", "must be one that there is. Received: 'np'. Use one of ['launch']"),
        ("[launch]\nelastic = 'yes'", "must be true or false. Received: 'yes'"),
        ("[launch]\nnp = [2]", "must be a whole number, 'auto' or 'gpu'. Received: [2]"),
        ("[launch]\nnp = inf", "must be a whole number, 'auto' or 'gpu'. Received: inf"),
        ("[launch]\nnp = 2.9", "must be a whole number, 'auto' or 'gpu'. Received: 2.9"),
        ("[launch]\nlog-dir = ''", "must be a text or a number. Received: ''"),
        ("[launch]\nexchange = ['ring']", "must be a text or a number. Received: ['ring']"),
        ("[launch]\narguments = 'a'", "must be a list of texts. Received: 'a'"),
        ("[launch]\nnp = 'two'", "-n must be a whole number, 'auto' or 'gpu'. Received: 'two'. Try -n 2"),
        ("[launch", "--config must be a TOML file. Received: "),
    ],
)
def test_a_wrong_file_is_one_line(cli, config, text, message):
    done = cli("launch", "--config", config(text), "train.py")
    assert done.exit_code == 2
    assert message in done.output and done.output.count("\n") == 1


def test_a_file_that_is_not_there_is_one_line(cli):
    done = cli("launch", "--config", "nowhere.toml", "train.py")
    assert (done.exit_code, done.output) == (
        2,
        "easyscale launch: --config must be a TOML file. Received: 'nowhere.toml' (No such file or directory)\n",
    )


def test_a_file_that_is_nested_too_deep_is_one_line(cli, config):
    done = cli("launch", "--config", config(f"a = {'[' * 3000}{']' * 3000}"))
    assert done.exit_code == 2
    assert "--config must be a TOML file. Received: " in done.output


def test_arguments_are_printed_as_toml_or_refused(cli, config, script):
    path = script("")
    printed = cli("launch", "-n", "2", "--print-config", path, "a\x7fb \U0001f600")
    assert tomllib.loads(printed.output)["launch"]["arguments"] == ["a\x7fb \U0001f600"]
    refused = cli("launch", "-n", "2", "--print-config", path, "\udcff")
    assert refused.exit_code == 2
    assert "--print-config is for arguments in UTF-8" in refused.output
