"""The example for Kubernetes: manifests are what the schemas take, and files, image and document say the same.

Nothing here runs on a cluster, and no image is built.
"""

import configparser
import json
import re
import shlex
import sys
from pathlib import Path

import pytest
from launches import run

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "kubernetes"
PYTHON = Path(sys.prefix, "kubernetes", "bin", "python")
MANIFESTS = ["checkpoints.yaml", "mpijob.yaml", "trainjob.yaml"]
PAGE = (ROOT / "docs" / "clusters.md").read_text()

pytestmark = [
    pytest.mark.skipif(not PYTHON.exists(), reason="there is no kubeflow-trainer-api here: `make test` installs it"),
]

# A manifest, what is written instead of what in it, and what must be said then.
MISTAKES = {
    "another version": ("mpijob.yaml", "kubeflow.org/v2beta1", "kubeflow.org/v1", "kind: "),
    "no name": ("mpijob.yaml", "  name: digits\nspec", "  labels: {}\nspec", "metadata.name: Field required"),
    "a field of MPIJobs": ("mpijob.yaml", "slotsPerWorker", "slotsPerWorkers", "spec.slotsPerWorkers: Extra inputs"),
    "a number as text": ("mpijob.yaml", "backoffLimit: 3", 'backoffLimit: "3"', "spec.runPolicy.backoffLimit: Input"),
    "another word": ("mpijob.yaml", "OpenMPI", "openmpi", "spec.mpiImplementation: Input should be 'OpenMPI'"),
    "two launchers": ("mpijob.yaml", "replicas: 1", "replicas: 2", "spec.mpiReplicaSpecs.Launcher.replicas: Input"),
    "no launcher": ("mpijob.yaml", "    Launcher:", "    Leader:", "spec.mpiReplicaSpecs.Launcher: Field required"),
    "a field of pods": ("mpijob.yaml", "volumeMounts", "volumesMounts", ".containers.0.volumesMounts: Extra inputs"),
    "a container without a name": (
        "mpijob.yaml",
        "name: worker",
        "image: worker",
        ".containers.0.name: Field required",
    ),
    "no quantity": ("mpijob.yaml", "memory: 4Gi", "memory: 4 GB", ".containers.0.resources.requests.memory: "),
    "a port that is a list": ("mpijob.yaml", "port: 2222", "port: [2222]", ".readinessProbe.tcpSocket.port: "),
    "a field of runtimes": ("trainjob.yaml", "numProcPerNode: 2", "slots: 2", "spec.mlPolicy.mpi.slots: Extra inputs"),
    "yes as text": ("trainjob.yaml", "AsNode: false", "AsNode: 'false'", "spec.mlPolicy.mpi.runLauncherAsNode: Input"),
    "a field of JobSets": ("trainjob.yaml", "maxRestarts", "restarts", "spec.template.spec.failurePolicy.restarts: "),
    "a job without a runtime": ("trainjob.yaml", "runtimeRef:", "runtime:", "spec.runtimeRef: Field required"),
    "a command in one word": (
        "trainjob.yaml",
        "command: [easyscale,",
        "command: easyscale #",
        "spec.trainer.command: ",
    ),
    "a list that is a word": ("checkpoints.yaml", ":\n    - ReadWriteMany", ": ReadWriteMany", "spec.accessModes: "),
}


@pytest.fixture(scope="module")
def read(tmp_path_factory):
    """Returns what is in a file of the example, or in a manifest with a mistake."""
    folder = tmp_path_factory.mktemp("mistakes")
    files = {name: FOLDER / name for name in [*MANIFESTS, "Dockerfile"]}
    for mistake, (name, old, new, _) in MISTAKES.items():
        text = (FOLDER / name).read_text()
        assert old in text, f"{name} has no {old!r} any more"
        files[mistake] = folder / f"{mistake}.yaml"
        files[mistake].write_text(text.replace(old, new))
    done = run([str(PYTHON), str(Path(__file__).with_name("reading.py")), *map(str, files.values())], timeout=60)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    return lambda name: found[str(files[name])]


@pytest.fixture(scope="module")
def documents(read):
    """Returns the document of a kind."""
    found = {document["kind"]: document for name in MANIFESTS for document in read(name)["documents"]}
    return found.__getitem__


@pytest.fixture(scope="module")
def dockerfile(read):
    """Returns what follows an instruction, each time that it stands in the Dockerfile."""
    instructions = read("Dockerfile")["instructions"]
    return lambda name: [value for instruction, value in instructions if instruction == name]


@pytest.fixture(scope="module")
def pods(documents):
    """Returns the specification of the pods of a job that are for its launcher, or for its workers."""
    replicas = documents("MPIJob")["spec"]["mpiReplicaSpecs"]
    jobs = {job["name"]: job for job in documents("TrainingRuntime")["spec"]["template"]["spec"]["replicatedJobs"]}
    found = {("MPIJob", name): replica["template"]["spec"] for name, replica in replicas.items()}
    for role, name in (("Launcher", "launcher"), ("Worker", "node")):
        found["TrainJob", role] = jobs[name]["template"]["spec"]["template"]["spec"]
    return lambda kind, role: found[kind, role]


def options(name):
    """Returns the options in a file of ssh or sshd."""
    lines = [line.split(maxsplit=1) for line in (FOLDER / name).read_text().splitlines()]
    return {words[0]: words[1] for words in lines if len(words) == 2 and not words[0].startswith("#")}


BOTH = pytest.mark.parametrize("kind", ["MPIJob", "TrainJob"])
ROLES = pytest.mark.parametrize("role", ["Launcher", "Worker"])


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_manifest_has_the_fields_of_its_schema(read, name):
    assert read(name)["errors"] == []


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_a_manifest_is_found(read, mistake):
    expected = MISTAKES[mistake][-1]
    assert any(expected in line for line in read(mistake)["errors"]), read(mistake)["errors"]


def test_the_image_is_of_a_python_that_the_package_takes(read, dockerfile):
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    classifiers = setup["metadata"]["classifiers"].split("\n")
    version = re.fullmatch(r"python:(3\.\d+)-slim-\w+", read("Dockerfile")["image"])[1]
    assert f"Programming Language :: Python :: {version}" in classifiers
    installed = re.search(r"easyscale\[(.*?)\] @ file://(\S+?)\"", " ".join(dockerfile("RUN")))
    assert {"tensorflow", "mpi"} <= set(installed[1].split(",")) <= set(setup["options.extras_require"])
    assert f"--constraint {installed[2]}/constraints.txt" in " ".join(dockerfile("RUN"))


def test_what_the_image_copies_is_there_and_is_all_of_the_package(dockerfile):
    sources = [source for line in dockerfile("COPY") for source in line.split()[:-1]]
    assert [source for source in sources if not (ROOT / source).exists()] == []
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    folders = [line.split(" = ")[1] for line in setup["options"]["package_dir"].strip().splitlines()]
    files = ["setup.cfg", "pyproject.toml", setup["metadata"]["license_files"], "README.md", "constraints.txt"]
    assert {*folders, *files} <= set(sources)


def test_the_user_of_the_image_is_not_root_and_is_that_of_all_pods(dockerfile, pods):
    user = dockerfile("USER")[-1]
    added = next(line for line in dockerfile("RUN") if line.startswith("useradd"))
    assert int(user) > 0 and f"--uid {user} " in added
    assert dockerfile("WORKDIR")[-1] == f"/home/{added.split()[-1]}"
    for kind in ("MPIJob", "TrainJob"):
        for role in ("Launcher", "Worker"):
            context = pods(kind, role)["securityContext"]
            assert context["runAsNonRoot"] is True and context["runAsUser"] == int(user)
    # Trainer's keys can be read by this group alone, and checkpoints written by it.
    shared = [pods("MPIJob", "Worker"), pods("TrainJob", "Worker"), pods("TrainJob", "Launcher")]
    assert [pod["securityContext"]["fsGroup"] for pod in shared] == [int(user)] * 3


def test_keys_are_mounted_where_ssh_looks_for_them(documents):
    sshd, ssh = options("sshd_config"), options("ssh_config")
    folder = documents("MPIJob")["spec"]["sshAuthMountPath"]
    assert documents("TrainingRuntime")["spec"]["mlPolicy"]["mpi"]["sshAuthMountPath"] == folder
    assert sshd["HostKey"] == ssh["IdentityFile"] == f"{folder}/id_rsa"
    assert sshd["AuthorizedKeysFile"] == f"{folder}/authorized_keys"


@BOTH
def test_workers_listen_where_ssh_knocks(pods, dockerfile, kind):
    (worker,) = pods(kind, "Worker")["containers"]
    copied = dict(line.split() for line in dockerfile("COPY") if len(line.split()) == 2)
    assert worker["command"] == ["/usr/sbin/sshd", "-D", "-e", "-f", copied["examples/kubernetes/sshd_config"]]
    assert re.fullmatch(r"/etc/ssh/ssh_config\.d/\w+\.conf", copied["examples/kubernetes/ssh_config"])
    (port,) = dockerfile("EXPOSE")
    assert options("sshd_config")["Port"] == options("ssh_config")["Port"] == port and int(port) > 1023
    assert [each["containerPort"] for each in worker["ports"]] == [int(port)]
    assert worker["readinessProbe"]["tcpSocket"]["port"] == int(port)


@BOTH
def test_a_worker_has_cores_of_its_own_shared_memory_and_the_checkpoints(pods, documents, kind):
    worker, pod = pods(kind, "Worker")["containers"][0], pods(kind, "Worker")
    assert worker["resources"]["requests"] == worker["resources"]["limits"]
    assert int(worker["resources"]["limits"]["cpu"]) >= 2
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    mounted = {mount["mountPath"]: volumes[mount["name"]] for mount in worker["volumeMounts"]}
    shared = mounted["/dev/shm"]["emptyDir"]
    assert shared["medium"] == "Memory"
    assert int(shared["sizeLimit"].removesuffix("Gi")) < int(worker["resources"]["limits"]["memory"].removesuffix("Gi"))
    claim = documents("PersistentVolumeClaim")
    assert mounted["/checkpoints"]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]


@BOTH
def test_the_launcher_takes_its_command_and_finds_the_script(pods, documents, dockerfile, kind):
    command = documents("TrainJob")["spec"]["trainer"]["command"]
    if kind == "MPIJob":
        assert pods(kind, "Launcher")["containers"][0]["command"] == command
    assert command[:2] == ["easyscale", "launch"] and not {"-n", "--hosts", "--hostfile"} & set(command)
    script = command.index("train.py")
    assert f"examples/kubernetes/{command[script]} {command[script]}" in dockerfile("COPY")
    assert command[script + 1 :] == ["--checkpoints", "/checkpoints/digits"]
    arguments = [str(FOLDER / word) if word == "train.py" else word for word in command[2:]]
    program = str(Path(sys.executable).with_name("easyscale"))
    done = run([program, "launch", "--dry-run", *arguments], timeout=30)
    assert done.returncode == 0, done.stderr
    assert done.stdout.rstrip().endswith(shlex.join(arguments[arguments.index(str(FOLDER / "train.py")) :]))


def test_a_trainjob_names_the_runtime_beside_it_whose_containers_trainer_knows(documents, pods):
    runtime, reference = documents("TrainingRuntime"), documents("TrainJob")["spec"]["runtimeRef"]
    assert (reference["kind"], reference["name"]) == ("TrainingRuntime", runtime["metadata"]["name"])
    assert runtime["apiVersion"].split("/")[0] == reference["apiGroup"]
    assert [pods("TrainJob", role)["containers"][0]["name"] for role in ("Launcher", "Worker")] == ["node", "node"]
    launcher = runtime["spec"]["template"]["spec"]["replicatedJobs"][-1]
    assert launcher["dependsOn"] == [{"name": "node", "status": "Ready"}]


def test_both_jobs_have_the_ranks_that_the_document_says(documents):
    job, policy = documents("MPIJob")["spec"], documents("TrainingRuntime")["spec"]["mlPolicy"]
    workers, slots = job["mpiReplicaSpecs"]["Worker"]["replicas"], job["slotsPerWorker"]
    assert (workers, slots) == (policy["numNodes"], policy["mpi"]["numProcPerNode"])
    assert f"{workers} workers x {slots} slots = {workers * slots} ranks" in PAGE


def test_the_commands_of_the_document_name_what_is_there(documents, dockerfile, pods):
    lines = [line[2:] for line in PAGE.splitlines() if line.startswith(("$ docker ", "$ kubectl "))]
    build, apply, logs = map(shlex.split, lines)
    assert build[:3] == ["docker", "build", "--push"] and build[-1] == "."
    assert (ROOT / build[build.index("--file") + 1]) == FOLDER / "Dockerfile"
    image = build[build.index("--tag") + 1]
    assert shlex.join(build) in (FOLDER / "Dockerfile").read_text()
    for kind in ("MPIJob", "TrainJob"):
        assert [pods(kind, role)["containers"][0]["image"] for role in ("Launcher", "Worker")] == [image, image]
    applied = [word for word in apply if word.endswith(".yaml")]
    assert [ROOT / path for path in applied] == [FOLDER / "checkpoints.yaml", FOLDER / "mpijob.yaml"]
    assert logs[-1] == f"job/{documents('MPIJob')['metadata']['name']}-launcher"  # as the operator calls it


def test_the_document_says_what_the_manifests_have(documents):
    job = documents("MPIJob")["spec"]
    said = [
        f"`backoffLimit: {job['runPolicy']['backoffLimit']}`",
        f"`--restarts {job['mpiReplicaSpecs']['Launcher']['template']['spec']['containers'][0]['command'][3]}`",
        f"`restartPolicy: {job['mpiReplicaSpecs']['Worker']['restartPolicy']}`",
        f"`{documents('PersistentVolumeClaim')['metadata']['name']}`",
        "`ReadWriteMany`",
        "`medium: Memory`",
    ]
    assert [words for words in said if words not in PAGE] == []
