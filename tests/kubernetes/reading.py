"""Reads manifests and Dockerfiles, and prints as JSON what is in each file and what is wrong with it.

    .venv/kubernetes/bin/python tests/kubernetes/reading.py examples/kubernetes/*.yaml examples/kubernetes/Dockerfile

Wrong are fields that there are not, values of another type, and what is required and missing. The models are those of
kubeflow-trainer-api, a package that Kubeflow makes from its Trainer, JobSet and Kubernetes, and `mpijob.py`.
"""

import json
import re
import sys
from pathlib import Path

import dockerfile_parse
import pydantic
import yaml
from kubeflow_trainer_api import models

sys.path.insert(0, str(Path(__file__).parent))

from mpijob import MPIJob  # noqa: E402

MODELS = {
    ("v1", "PersistentVolumeClaim"): models.IoK8sApiCoreV1PersistentVolumeClaim,
    ("kubeflow.org/v2beta1", "MPIJob"): MPIJob,
    ("trainer.kubeflow.org/v1alpha1", "TrainingRuntime"): models.TrainerV1alpha1TrainingRuntime,
    ("trainer.kubeflow.org/v1alpha1", "TrainJob"): models.TrainerV1alpha1TrainJob,
}
# These two are models of one value, which a manifest has as it is. Quantities are written as Kubernetes says.
QUANTITY = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?\d+)?")
PLAIN = {
    "IoK8sApimachineryPkgApiResourceQuantity": lambda value: QUANTITY.fullmatch(str(value)) is not None,
    "IoK8sApimachineryPkgUtilIntstrIntOrString": lambda value: isinstance(value, (int, str)),
}


def errors(document: dict) -> list[str]:
    """Return what is wrong with a document of a manifest: where, and what."""
    kind = document.get("apiVersion"), document.get("kind")
    if kind not in MODELS:
        return [f"kind: {kind} is none of {list(MODELS)}"]
    if not document.get("metadata", {}).get("name"):
        return ["metadata.name: Field required"]
    try:
        MODELS[kind].model_validate(document, extra="forbid")
    except pydantic.ValidationError as error:
        found = [each for each in error.errors() if not _is_plain(each)]
        return [f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in found]
    return []


def _is_plain(error: dict) -> bool:
    check = PLAIN.get(error.get("ctx", {}).get("class_name"))
    return error["type"] == "model_type" and check is not None and check(error["input"])


def read(path: str) -> dict:
    """Return what is in a file: `documents` and `errors` of a manifest, `instructions` and `image` of a Dockerfile."""
    text = Path(path).read_text(encoding="utf-8")
    if path.endswith(".yaml"):
        documents = list(yaml.safe_load_all(text))
        return {"documents": documents, "errors": [line for document in documents for line in errors(document)]}
    parser = dockerfile_parse.DockerfileParser(path, cache_content=True)
    parts = [part for part in parser.structure if part["instruction"] != "COMMENT"]
    return {"instructions": [(part["instruction"], part["value"]) for part in parts], "image": parser.baseimage}


if __name__ == "__main__":
    print(json.dumps({path: read(path) for path in sys.argv[1:]}))
