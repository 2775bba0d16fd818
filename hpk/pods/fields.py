"""The support of every field of a pod's spec: done, refused by name, or without meaning here.

A field of the models in ``hpk.kube.v1`` is done, unless `WITHOUT_MEANING` names it. Everything else is refused, for the
reason in `REFUSED`. A unit test walks the API's schema, so that no field of a new release is left out, and `table`
lists all of it for the documentation.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from types import UnionType
from typing import TYPE_CHECKING, Any, Union, get_args, get_origin

import msgspec

from hpk.kube import model, v1

if TYPE_CHECKING:
    from collections.abc import Iterator

_ONE_NODE = "a preference chooses among nodes, and there is one"
_NO_RESIZE = "pods cannot be resized: a Slurm job's CPUs and memory are fixed once it is submitted"
_NO_DEVICE = "only the compute node's administrator can give block devices"
_NO_CLAIMS = "there is no dynamic resource allocation: ask for GPUs as nvidia.com/gpu, for other devices by --gres"
_NO_MOUNT = "an ordinary user cannot mount it; mount it on the nodes, and use hostPath"
_MOUNTS = "nfs iscsi fc cephfs rbd glusterfs"
_NO_CLOUD = "its driver left Kubernetes, and no cloud's disk can be attached to a Slurm node"
_CLOUDS = (
    "awsElasticBlockStore azureDisk azureFile cinder flocker gcePersistentDisk photonPersistentDisk portworxVolume "
    "quobyte scaleIO storageos vsphereVolume"
)
_ALPHA = "the API server drops it unless an alpha feature is on"
_ALPHAS = (
    "PodSpec.evictionResponders PodSpec.schedulingGroup VolumeMount.bindMountOptions HTTPGetAction.protocol "
    "GRPCAction.mode EmptyDirSource.mode"
)
_ONE_OWNER = "a volume's files have one owner for all containers"
_OWNERS = (
    "KeyToPath.user ConfigMapSource.defaultUser SecretSource.defaultUser DownwardSource.defaultUser "
    "DownwardItem.user ProjectedSource.defaultUser TokenSource.user TrustBundleSource.user"
)

WITHOUT_MEANING: dict[str, str] = {
    "PodSpec.hostUsers": "every pod has its own user namespace, whatever the field says",
    "PodSpec.preemptionPolicy": "no pod is preempted for another: Slurm orders jobs (--qos and --nice in the flags)",
    "PodSpec.priorityClassName": "the API server has resolved it to PodSpec.priority",
    "PodSpec.automountServiceAccountToken": "the API server has added the token's volume, or has not",
    "PodSpec.serviceAccount": "an older name of serviceAccountName, which the API server keeps the same",
    "PodSecurityContext.fsGroupChangePolicy": "volumes are made anew for each pod, and fsGroup changes no hostPath",
    "PodSecurityContext.seLinuxChangePolicy": "it selects how volumes get their seLinuxOptions",
    "Container.resizePolicy": _NO_RESIZE,
    "EphemeralContainer.resizePolicy": _NO_RESIZE,
    "FieldSelector.apiVersion": "there is one version of a pod, v1",
    "ContainerPort.hostIP": "a port on the host's network is where the program opens it",
    "NodeAffinity.preferredDuringSchedulingIgnoredDuringExecution": _ONE_NODE,
    "PodAffinity.preferredDuringSchedulingIgnoredDuringExecution": _ONE_NODE,
    "PodAffinityTerm.matchLabelKeys": "the API server has put them into labelSelector",
    "PodAffinityTerm.mismatchLabelKeys": "the API server has put them into labelSelector",
    "TopologySpreadConstraint.matchLabelKeys": "the API server has put them into labelSelector",
    "TopologySpreadConstraint.nodeAffinityPolicy": "it chooses which nodes count, and there is one",
    "TopologySpreadConstraint.nodeTaintsPolicy": "it chooses which nodes count, and there is one",
    "Toleration.tolerationSeconds": "no taint evicts pods: jobs outlive a kubelet or slurmctld that is away",
}
"""Fields accepted without effect, by type and field, with the reason."""

REFUSED: dict[str, str] = {
    "PodSpec.hostIPC": "pods must not see the IPC objects of other users on the compute node",
    "PodSpec.hostPID": "pods must not see the processes of other users on the compute node",
    "PodSpec.hostnameOverride": "use hostname",
    "PodSpec.resourceClaims": _NO_CLAIMS,
    "PodSpec.setHostnameAsFQDN": "the kernel's host name is the short one",
    "PodSecurityContext.sysctls": "only the compute node's administrator can allow kernel settings",
    "PodSecurityContext.windowsOptions": "the nodes run Linux",
    "SecurityContext.windowsOptions": "the nodes run Linux",
    "AppArmorProfile.localhostProfile": "only an administrator can load profiles",
    "Container.restartPolicyRules": "use restartPolicy",
    "EphemeralContainer.restartPolicyRules": "an ephemeral container is never restarted",
    "Container.volumeDevices": _NO_DEVICE,
    "EphemeralContainer.volumeDevices": _NO_DEVICE,
    "Resources.claims": _NO_CLAIMS,
    "EnvSource.fileKeyRef": "use a ConfigMap or a Secret, or read the file in the container",
    "Projection.podCertificate": "no signer issues certificates to pods",
    "Volume.persistentVolumeClaim": "there is no provisioner yet; use hostPath on a shared file system",
    "Volume.ephemeral": "there is no provisioner yet; use emptyDir",
    "Volume.csi": "no CSI driver can run without root on the nodes",
    "Volume.image": "image volumes are not made yet; copy the files in an init container",
    "Volume.flexVolume": "only an administrator can install its drivers",
    "Volume.gitRepo": "clone in an init container",
    **{f"Volume.{kind}": _NO_MOUNT for kind in _MOUNTS.split()},
    **{f"Volume.{kind}": _NO_CLOUD for kind in _CLOUDS.split()},
    **dict.fromkeys(_ALPHAS.split(), _ALPHA),
    **dict.fromkeys(_OWNERS.split(), _ONE_OWNER),
}
"""Unsupported fields, by type and field, with the text shown beside the field's name."""

REMARKS: dict[str, str] = {
    "Resources.limits": "a CPU limit grants no more than the job has: a pod's containers share its job's CPUs",
    "Resources.requests": "the job is given them; of memory the limits, where there are any",
    "PodSpec.priority": "of the pods that wait for room on the node, the highest comes first; Slurm orders jobs",
    "PodSpec.resources": "the pod's own count instead of its containers' sum",
    "PodSpec.runtimeClassName": "handlers runc, crun and apptainer mean the one runtime here; pods with others wait",
    "PodSpec.nodeSelector": "the node is all of Slurm; among Slurm's nodes choose by --constraint in the flags",
    "PodSpec.affinity": "as a scheduler sees one node; on Slurm's nodes keep jobs apart by --exclusive in the flags",
    "PodSpec.schedulerName": "pods of another scheduler are left to it",
    "PodSpec.dnsPolicy": "there is no cluster DNS yet, so ClusterFirst is Default, as with a kubelet that has none",
    "PodSecurityContext.seLinuxOptions": "without meaning where the kernel has no SELinux, else refused",
    "SecurityContext.seLinuxOptions": "without meaning where the kernel has no SELinux, else refused",
    "SecurityContext.privileged": "refused: a pod has no privilege over the compute node",
    "ContainerPort.hostPort": "on the host's network only",
}
"""Remarks on supported fields."""

ONLY: dict[str, tuple[frozenset[str], str]] = {
    "PodOS.name": (frozenset({"linux"}), "the nodes run Linux"),
    "PodSecurityContext.supplementalGroupsPolicy": (
        frozenset({"Merge"}),
        "the image's own groups are always added, as by default",
    ),
    "SecurityContext.procMount": (frozenset({"Default"}), "masked paths of /proc stay masked"),
    "VolumeMount.recursiveReadOnly": (
        frozenset({"Disabled", "IfPossible"}),
        "mounts below a host path stay as they are",
    ),
    "VolumeMount.mountPropagation": (frozenset({"None"}), "mounts stay within their container"),
    "SeccompProfile.type": (
        frozenset({"RuntimeDefault", "Unconfined"}),
        "the node's profiles are not read; use RuntimeDefault",
    ),
    "AppArmorProfile.type": (frozenset({"Unconfined"}), "only an administrator can load profiles"),
    "EmptyDirSource.medium": (frozenset({"Memory"}), "only root can reserve huge pages; omit it, or use Memory"),
}
"""Fields of which only these values and the empty one are supported."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """The support of one field; ``standing`` is ``done``, ``without meaning`` or ``refused``."""

    name: str
    standing: str
    reason: str = ""


@dataclass(frozen=True)
class _Part:
    """A known field: the model of its value, and the supported values."""

    model: type[model.Model] | None
    only: frozenset[str] | None


def unsupported(raw: dict[str, Any], kind: type[model.Model] = v1.PodSpec, path: str = "spec") -> list[str]:
    """Return a sentence for each unsupported field that is set, such as ``spec.volumes[0].iscsi is not supported (…)``.

    Fields that are null, false, zero or empty ask for nothing.
    """
    parts, found = _parts(kind), list[str]()
    for key, value in raw.items():
        name = f"{kind.__name__}.{key}"
        part = parts.get(key)
        if part is None:
            if value and name not in WITHOUT_MEANING:
                reason = REFUSED.get(name)
                found.append(f"{path}.{key} is not supported" + (f" ({reason})" if reason else ""))
        elif part.only is not None and value and value not in part.only:
            found.append(f"{path}.{key}: {value} is not supported ({ONLY[name][1]})")
        elif part.model is not None:
            found += _below(value, part.model, f"{path}.{key}")
    return found


def table() -> list[Row]:
    """Return the support of each field, sorted by type and name."""
    rows = [Row(name=name, standing="without meaning", reason=reason) for name, reason in WITHOUT_MEANING.items()]
    rows += [Row(name=name, standing="refused", reason=reason) for name, reason in REFUSED.items()]
    for kind in _kinds(v1.PodSpec):
        for key in _parts(kind):
            name = f"{kind.__name__}.{key}"
            only = ONLY.get(name)
            reason = f"{', '.join(sorted(only[0]))} only: {only[1]}" if only else REMARKS.get(name, "")
            if name not in WITHOUT_MEANING:
                rows.append(Row(name=name, standing="done", reason=reason))
    return sorted(rows, key=lambda row: row.name)


def _below(value: Any, kind: type[model.Model], path: str) -> list[str]:
    if isinstance(value, list):
        parts = [_below(item, kind, f"{path}[{index}]") for index, item in enumerate(value)]
        return [sentence for part in parts for sentence in part]
    return unsupported(value, kind, path) if isinstance(value, dict) else []


@functools.cache
def _parts(kind: type[model.Model]) -> dict[str, _Part]:
    """Return the model's fields by the API's names; cached, because every created pod passes here."""
    return {
        field.encode_name: _Part(_model_of(field.type), ONLY.get(f"{kind.__name__}.{field.encode_name}", (None,))[0])
        for field in msgspec.structs.fields(kind)
    }


def _kinds(kind: type[model.Model], seen: set[type[model.Model]] | None = None) -> Iterator[type[model.Model]]:
    """Yield the model and all models within it, each once."""
    seen = set() if seen is None else seen
    if kind in seen:
        return
    seen.add(kind)
    yield kind
    for part in _parts(kind).values():
        if part.model is not None:
            yield from _kinds(part.model, seen)


def _model_of(kind: Any) -> type[model.Model] | None:
    """Return the Model within ``X``, ``X | None`` or ``list[X]``, or None."""
    if get_origin(kind) in (Union, UnionType, list):
        return next((found for option in get_args(kind) if (found := _model_of(option))), None)
    return kind if isinstance(kind, type) and issubclass(kind, model.Model) else None
