"""What cannot be honoured is refused by name, before anything is done for it."""

from __future__ import annotations

import dataclasses
from decimal import Decimal
from typing import Any

import pytest

from hpk import errors
from hpk.pods import admit

CLUSTER = admit.Cluster(
    name="hpk",
    allocatable={"cpu": Decimal(8), "memory": Decimal(16 << 30), "nvidia.com/gpu": Decimal(2)},
    labels={"kubernetes.io/os": "linux", "kubernetes.io/hostname": "hpk"},
)


def raw(container: dict[str, Any] | None = None, *, annotations: dict[str, str] | None = None, **spec: Any) -> Any:
    """A raw pod of one container."""
    meta = {"name": "p", "namespace": "ns", "uid": "u", "annotations": annotations or {}}
    return {"metadata": meta, "spec": {"containers": [{"name": "c", "image": "i", **(container or {})}], **spec}}


def refusal(pod: Any) -> errors.PodRefused:
    """The error with which the pod is refused."""
    with pytest.raises(errors.PodRefused) as caught:
        admit.admit(pod, cluster=CLUSTER)
    return caught.value


@pytest.mark.parametrize(
    ("pod", "words"),
    [
        (raw({"securityContext": {"privileged": True}}), "privileged"),
        (raw(volumes=[{"name": "d", "iscsi": {"iqn": "x"}}]), "spec.volumes[0].iscsi"),
        (raw(hostPID=True), "spec.hostPID"),
        (raw(hostIPC=True), "spec.hostIPC"),
        (raw({"securityContext": {"seccompProfile": {"type": "Localhost", "localhostProfile": "x"}}}), "Localhost"),
        (raw(annotations={"slurm.hpk.io/flag": "-p main"}), "did you mean slurm.hpk.io/flags"),
        (raw(annotations={"slurm.hpk.io/mpi-flags": "x"}), "slurm.hpk.io/mpi-flags is not supported"),
        (raw(annotations={"slurm-job.hpk.io/mpi-flags": "x"}), "slurm-job.hpk.io/mpi-flags is not supported"),
        (raw(annotations={"slurm-job.hpk.io/mpi-flag": "x"}), "slurm-job.hpk.io/mpi-flag is not supported"),
        (raw(annotations={"slurm-job.hpk.io/mpi": "x"}), "slurm-job.hpk.io/mpi is not known"),
        (raw(annotations={"slurm.hpk.io/flags": "-p 'main"}), "slurm.hpk.io/flags"),
        (raw(annotations={"slurm.hpk.io/flags": "--wrap=x"}), "--wrap"),
        (raw(os={"name": "windows"}), "spec.os.name: windows is not supported (the nodes run Linux)"),
        (
            raw({"volumeMounts": [{"name": "m", "mountPath": "/m", "mountPropagation": "Bidirectional"}]}),
            "Bidirectional",
        ),
        (raw(volumes=[{"name": "d", "emptyDir": {"medium": "HugePages-2Mi"}}]), "emptyDir.medium: HugePages-2Mi"),
        (raw(securityContext={"supplementalGroupsPolicy": "Strict"}), "supplementalGroupsPolicy: Strict"),
        (raw({"livenessProbe": {"grpc": {"port": 1, "mode": "TLS"}}}), "spec.containers[0].livenessProbe.grpc.mode"),
        (raw({"lifecycle": {"preStop": {"exec": {"shell": "x"}}}}), "spec.containers[0].lifecycle.preStop.exec.shell"),
        (raw({"securityContext": {"appArmorProfile": {"type": "RuntimeDefault"}}}), "appArmorProfile.type"),
        (raw({"volumeMounts": [{"name": "nope", "mountPath": "/x"}]}), "'nope' has no volume"),
    ],
)
def test_what_is_not_supported_is_named(pod: Any, words: str) -> None:
    """The message has the field's or the annotation's own name."""
    assert words in str(refusal(pod))


ONE_ID = dataclasses.replace(CLUSTER, has_subordinate_ids=False)


@pytest.mark.parametrize(
    ("pod", "words"),
    [
        (raw(securityContext={"fsGroup": 5}), "spec.securityContext.fsGroup 5"),
        (raw(securityContext={"supplementalGroups": [7, 8]}), "spec.securityContext.supplementalGroups 7, 8"),
        (
            raw(
                securityContext={"runAsUser": 1000},
                initContainers=[{"name": "i", "image": "i", "securityContext": {"runAsUser": 0}}],
            ),
            "securityContext.runAsUser 0 and 1000 in one pod",
        ),
        (
            raw(shareProcessNamespace=True, securityContext={"runAsUser": 1000}),
            "spec.shareProcessNamespace as a user other than 0",
        ),
    ],
)
def test_what_needs_several_ids_is_refused_where_there_is_one(pod: Any, words: str) -> None:
    """By name, with who can help; with subordinate ids it is no problem."""
    with pytest.raises(errors.PodRefused) as caught:
        admit.admit(pod, cluster=ONE_ID)
    assert f"{words} is not supported (" in str(caught.value)
    assert "/etc/subuid" in str(caught.value)
    admit.admit(pod, cluster=CLUSTER)


@pytest.mark.parametrize(
    "pod", [raw(), raw({"securityContext": {"runAsUser": 5}}), raw(securityContext={"runAsUser": 7, "runAsGroup": 9})]
)
def test_one_id_may_be_any(pod: Any) -> None:
    """Also one that the pod chooses."""
    admit.admit(pod, cluster=ONE_ID)


def test_all_that_is_wrong_is_told_at_once() -> None:
    """A user mends a manifest once, not field by field."""
    text = str(refusal(raw({"securityContext": {"privileged": True}}, hostPID=True)))
    assert "container c: securityContext.privileged is not supported (a pod has no privilege over" in text
    assert "spec.hostPID is not supported (" in text


@pytest.mark.parametrize(
    "pod",
    [
        raw(),
        raw({"securityContext": {"privileged": False, "seccompProfile": {"type": "RuntimeDefault"}}}),
        raw(hostPID=False, shareProcessNamespace=False, tolerations=[{"operator": "Exists"}]),
        raw(annotations={"slurm.hpk.io/flags": "-p main --time=5", "example.com/other": "x"}),
        raw(annotations={"slurm-job.hpk.io/mpi-flag": ""}),
        raw(nodeSelector={"kubernetes.io/os": "linux"}),
        raw(os={"name": "linux"}),
    ],
)
def test_what_can_be_given_is_admitted(pod: Any) -> None:
    """Fields that ask for nothing, or for what every pod has here, do no harm."""
    assert admit.admit(pod, cluster=CLUSTER).pod.metadata.name == "p"


@pytest.mark.parametrize(
    "spec",
    [
        {"securityContext": {"seLinuxOptions": {"level": "s0:c1"}, "supplementalGroupsPolicy": "Merge"}},
        {"securityContext": {"fsGroupChangePolicy": "OnRootMismatch", "appArmorProfile": {"type": "Unconfined"}}},
        {"schedulingGates": [{"name": "example.com/quota"}]},
        {"runtimeClassName": "any", "overhead": {"cpu": "10m"}},
        {"hostUsers": False, "priority": 7, "priorityClassName": "high", "preemptionPolicy": "Never"},
        {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "x"}]}}},
        {"nodeSelector": {"disk": "ssd"}},
    ],
)
def test_what_has_nothing_to_do_here_or_has_to_wait_is_admitted(spec: dict[str, Any]) -> None:
    """As a kubelet takes it on a machine without SELinux, AppArmor and block devices."""
    container = {
        "volumeMounts": [{"name": "d", "mountPath": "/d", "recursiveReadOnly": "Disabled", "mountPropagation": "None"}],
        "resizePolicy": [{"resourceName": "cpu", "restartPolicy": "NotRequired"}],
        "resources": {"requests": {"cpu": "9"}},
        "securityContext": {"procMount": "Default", "seLinuxOptions": {"type": "x_t"}},
    }
    admit.admit(raw(container, volumes=[{"name": "d", "emptyDir": {}}], **spec), cluster=CLUSTER)


def test_selinux_options_are_refused_where_the_kernel_would_heed_them() -> None:
    """A job's processes have the label that Slurm's daemon gave them."""
    labelled = dataclasses.replace(CLUSTER, has_selinux=True)
    pod = raw({"securityContext": {"seLinuxOptions": {"type": "x_t"}}}, securityContext={"seLinuxOptions": {}})
    with pytest.raises(errors.PodRefused, match=r"^container c: securityContext\.seLinuxOptions is not supported"):
        admit.admit(pod, cluster=labelled)


def test_a_host_port_is_refused_where_the_pod_has_a_network_of_its_own() -> None:
    """Nothing forwards it; on the host's network it is the same port."""
    ports = {"ports": [{"containerPort": 80, "hostPort": 8080}]}
    own = dataclasses.replace(CLUSTER, network="flannel")
    with pytest.raises(errors.PodRefused, match="c: hostPort 8080"):
        admit.admit(raw(ports), cluster=own)
    admit.admit(raw(ports, hostNetwork=True), cluster=own)
    admit.admit(raw(ports), cluster=dataclasses.replace(own, network="host"))


def test_the_first_spelling_of_the_flags_counts() -> None:
    """slurm.hpk.io/flags wins over the older spelling."""
    pod = raw(annotations={"slurm-job.hpk.io/flags": "-p old", "slurm.hpk.io/flags": "-p new"})
    assert admit.admit(pod, cluster=CLUSTER).options == {"partition": "new"}
    old = raw(annotations={"slurm-job.hpk.io/flags": "-p old"})
    assert admit.admit(old, cluster=CLUSTER).options == {"partition": "old"}
