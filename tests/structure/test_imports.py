"""Who imports whom, and which library where: the rules of DESIGN.md section 3."""

import configparser
import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from structure.package import MODULES, ROOT, imports, root

import easyscale

# Each part imports only parts that stand below it. A program that stands in a part may be named by itself.
LAYERS = [
    {"quantities", "run_module", "unbuffered"},
    {"as_main", "errors", "layout", "onednn", "settings", "progress", "timeline", "when_imported"},
    {"discovery", "keras_backend", "launchers", "versions"},
    {"logical_devices", "visible_gpus"},
    {"called", "elastic", "checkpoint", "keras_internals"},
    {"communicator"},
    {"compression", "gpus", "mesh", "backend.keras_steps"},
    {"exchange", "profiling", "separate", "workers", "data", "elastic.standby", "tf_caches"},
    {"scaling", "serving", "choice", "optimizers", "backend.base"},
    {"step"},
    {"backend"},
    {"replication"},
    {"update"},
    {"optimizer", "parallel"},
    {"training"},
    {"callbacks"},
    {"auto", "bench", "verify"},
    {"cli"},
    {"running"},
    {"integrations"},
    {"__main__"},
]


def _layer(module):
    names = module.split(".")[1:]
    part = ".".join(names) if any(".".join(names) in parts for parts in LAYERS) else names[0]
    layers = [number for number, parts in enumerate(LAYERS) if part in parts]
    assert layers, f"{module} is in no layer: say in {Path(__file__).name} where it stands"
    return layers[0], part


@pytest.mark.parametrize("module", [name for name in MODULES if name != "easyscale"])
def test_imports_go_one_way(module):
    layer, part = _layer(module)
    for other in imports(module):
        if root(other) == "easyscale" and other != "easyscale":
            below, other_part = _layer(other)
            assert below < layer or other_part == part, f"{module} imports {other}, which does not stand below it"


ONLY_IN = {
    "tensorflow": ["easyscale.backend.tensorflow", "easyscale.data.tf_dataset"],
    "torch": ["easyscale.backend.torch", "easyscale.data.data_loader"],
    "jax": ["easyscale.backend.jax"],
    "keras": [
        "easyscale.backend",
        "easyscale.keras_internals",
        "easyscale.optimizer",
        "easyscale.optimizers",
        "easyscale.parallel",
        "easyscale.update",
        "easyscale.training",
        "easyscale.callbacks",
        "easyscale.auto",
        "easyscale.bench",
        "easyscale.verify",
        "easyscale.data.adapting",
        "easyscale.data.keras_dataset",
    ],
    "mpi4py": ["easyscale.communicator.mpi"],
    "ray": ["easyscale.integrations.ray"],
}


def test_callbacks_are_what_a_user_puts_into_fit():
    """What they need beside has a place of its own."""
    public = importlib.import_module("easyscale.callbacks").__all__
    defining = {getattr(easyscale.callbacks, name).__module__ for name in public}
    assert {name for name in MODULES if name.startswith("easyscale.callbacks.")} == defining


@pytest.mark.parametrize("foreign", ONLY_IN)
def test_a_library_is_imported_only_where_its_place_is(foreign):
    allowed = ONLY_IN[foreign]
    importing = [module for module in MODULES if foreign in map(root, imports(module))]
    assert importing, f"nobody imports {foreign}: this test looks in the wrong place"
    for module in importing:
        assert any(module == part or module.startswith(part + ".") for part in allowed), f"{module}: {foreign}"


def test_every_library_that_is_imported_is_a_dependency():
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    lists = [config["options"]["install_requires"], *config["options.extras_require"].values()]
    names = {
        re.match(r"[\w-]+", line)[0]
        for requirements in lists
        for line in requirements.splitlines()
        if line and line[0] != "#"
    }
    known = {"tensorflow" if name == "tensorflow-cpu" else name for name in names}
    known |= {"easyscale", *sys.stdlib_module_names}
    imported = {root(name) for module in MODULES for name in imports(module)}
    assert imported <= known


def test_every_folder_is_installed():
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    folders = {name if file.name == "__init__.py" else name.rpartition(".")[0] for name, file in MODULES.items()}
    assert sorted(folders) == config["options"]["packages"].split()


def _loaded(script):
    """Run a script in a Python of its own and return which of the heavy libraries it has loaded."""
    script += "\nimport sys, json; print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return {"tensorflow", "torch", "jax", "keras", "mpi4py"} & set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize(
    "script",
    [
        "import easyscale; dir(easyscale)",
        "import easyscale; easyscale.exchange.available(); easyscale.exchange.get('ring')",
        "import easyscale; easyscale.rank(), easyscale.size(), easyscale.local_batch(4), easyscale.scope()",
        "import easyscale; easyscale.shard([1, 2, 3])",
        "import easyscale; easyscale.replication.available()",
        "import easyscale; easyscale.DesyncError",
        "import easyscale.cli.main",
        *(f"import {name}" for name in MODULES if name.startswith("easyscale.cli.") and "__main__" not in name),
        "import easyscale.bench.exchange, easyscale.verify.script",
    ],
)
def test_what_does_not_need_tensorflow_keras_or_mpi_does_not_load_them(script):
    assert _loaded(script) == set()


def test_the_optimizer_loads_keras():
    assert "keras" in _loaded("import easyscale; easyscale.DistributedOptimizer")
