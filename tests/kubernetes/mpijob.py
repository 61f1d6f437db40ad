"""The fields of an MPIJob, v2beta1, as Kubeflow's MPI operator 0.8.2 has them; no package has them.

From `manifests/base/kubeflow.org_mpijobs.yaml` in github.com/kubeflow/mpi-operator, without `status`. What the operator
refuses beside that is from its `pkg/apis/kubeflow/validation`: a job without a launcher, and words it does not know.
"""

from typing import Annotated, Literal

from kubeflow_trainer_api import models
from pydantic import BaseModel, Field, StrictBool, StrictInt, StrictStr

__all__ = ["MPIJob"]

Count = Annotated[StrictInt, Field(ge=0)]


class SchedulingPolicy(BaseModel):
    minAvailable: Count | None = None
    minResources: dict[str, models.IoK8sApimachineryPkgApiResourceQuantity] | None = None
    priorityClass: StrictStr | None = None
    queue: StrictStr | None = None
    scheduleTimeoutSeconds: Count | None = None


class RunPolicy(BaseModel):
    activeDeadlineSeconds: Count | None = None
    backoffLimit: Count | None = None
    cleanPodPolicy: Literal["None", "Running", "All"] | None = None
    managedBy: Literal["kubeflow.org/mpi-operator", "kueue.x-k8s.io/multikueue"] | None = None
    schedulingPolicy: SchedulingPolicy | None = None
    suspend: StrictBool | None = None
    ttlSecondsAfterFinished: Count | None = None


class ReplicaSpec(BaseModel):
    replicas: Annotated[StrictInt, Field(ge=1)] | None = None
    restartPolicy: Literal["Never", "OnFailure"] | None = None
    template: models.IoK8sApiCoreV1PodTemplateSpec


class Launcher(ReplicaSpec):
    replicas: Literal[1] | None = None


class MPIReplicaSpecs(BaseModel):
    Launcher: Launcher
    Worker: ReplicaSpec | None = None


class MPIJobSpec(BaseModel):
    launcherCreationPolicy: Literal["AtStartup", "WaitForWorkersReady"] | None = None
    mpiImplementation: Literal["OpenMPI", "Intel", "MPICH"] | None = None
    mpiReplicaSpecs: MPIReplicaSpecs
    runLauncherAsWorker: StrictBool | None = None
    runPolicy: RunPolicy | None = None
    slotsPerWorker: Count | None = None
    sshAuthMountPath: StrictStr | None = None


class MPIJob(BaseModel):
    apiVersion: Literal["kubeflow.org/v2beta1"]
    kind: Literal["MPIJob"]
    metadata: models.IoK8sApimachineryPkgApisMetaV1ObjectMeta
    spec: MPIJobSpec
