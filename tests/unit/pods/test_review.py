"""The webhook says what the worker would, before the object exists."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from hpk import errors
from hpk.pods import admit, gate, occupants, review
from hpk.slurm import model, parse
from tests.fakes import slurm

CAPACITY = parse.capacity(
    "".join(
        parse.UNIT.join(row) + parse.RECORD + "\n"
        for row in (
            ("c1", "main", "main*", "1:00:00", "NONE", "idle", "8", "16000", "(null)"),
            ("c2", "main", "main*", "1:00:00", "NONE", "drained", "16", "32000", "(null)"),
            ("g1", "gpu", "gpu", "infinite", "NONE", "idle", "4", "8000", "gpu:a100:2"),
        )
    )
)
CLUSTER = admit.Cluster(name="hpk", capacity=CAPACITY, partition_names=frozenset({"main", "gpu", "hidden"}))
OWNER = {"kind": "ReplicaSet", "name": "rs", "uid": "rs", "controller": True}


def raw(flags: str = "", *, owned: bool = False, requests: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    """A pod of one container."""
    meta: dict[str, Any] = {"name": "p", "namespace": "ns", "annotations": {}}
    if flags:
        meta["annotations"]["slurm.hpk.io/flags"] = flags
    if owned:
        meta["ownerReferences"] = [OWNER]
    container = {"name": "c", "image": "i", "resources": {"requests": requests or {}, "limits": requests or {}}}
    return {"metadata": meta, "spec": {"containers": [container], **spec}}


def reviews(cluster: admit.Cluster = CLUSTER) -> review.Reviews:
    """Over this cluster."""
    shut = gate.Gate(on_open=lambda _uid: None)
    return review.Reviews(cluster=lambda: cluster, gate=shut, others=occupants.Occupants())


@pytest.mark.parametrize(
    ("pod", "words"),
    [
        (raw(hostPID=True), "spec.hostPID is not supported"),
        (raw("--wrap=x"), "--wrap would break the pod"),
        (raw("--time=2:00:00"), "--time=2:00:00 is longer than partition main allows (01:00:00)"),
        (raw("--time=UNLIMITED"), "is longer than partition main allows"),
    ],
)
def test_what_cannot_be_given_is_refused_by_name(pod: dict[str, Any], words: str) -> None:
    """The text names field, annotation or resource, and it is the worker's own."""
    refusal, warnings = reviews().review("Pod", pod)
    assert refusal is not None
    assert words in refusal
    assert warnings == []
    with pytest.raises(errors.PodRefused) as caught:
        admit.admit(pod, cluster=CLUSTER)
    assert str(caught.value) == refusal


@pytest.mark.parametrize(
    "pod",
    [
        raw(),
        raw("--partition=main,gpu --time=30"),
        raw("--partition=hidden", owned=True),
        raw("-p gpu --time=9-00"),
        raw("--qos=long --time=9-00"),
        raw("--cpus-per-task=2", requests={"cpu": "17"}),
        raw(requests={"cpu": "16"}),
    ],
)
def test_what_slurm_may_take_is_let_through_unsaid(pod: dict[str, Any]) -> None:
    """A drained node counts, flags win over requests, a QOS may allow more time, and hidden partitions exist."""
    assert reviews().review("Pod", pod) == (None, [])


def test_an_unknown_partition_is_refused_to_a_controller_and_told_to_a_person() -> None:
    """A controller would replace the pod without end; a person's pod gets sbatch's own answer."""
    text = "invalid partition specified: nosuch (known: gpu, main)"
    assert reviews().review("Pod", raw("-p nosuch", owned=True)) == (text, [])
    assert reviews().review("Pod", raw("-p nosuch")) == (None, [text])


def test_nothing_is_said_before_slurm_has_answered() -> None:
    """No evidence, no refusal."""
    cluster = admit.Cluster(name="hpk")
    pod = raw("-p nosuch --time=99-00", owned=True, requests={"cpu": "1k"})
    assert reviews(cluster).review("Pod", pod) == (None, [])


def test_memory_that_nobody_configured_refuses_nothing() -> None:
    """Slurm then says 1 MB of every node."""
    node = model.Node(name="c1", cpus=8, memory_bytes=1 << 20, is_usable=True)
    cluster = admit.Cluster(
        name="hpk", capacity=model.ClusterCapacity(cpus=8, memory_bytes=1, gres={}, nodes={"c1": node}, partitions={})
    )
    assert reviews(cluster).review("Pod", raw(requests={"memory": "4Gi"})) == (None, [])


def test_a_grace_longer_than_the_time_limit_allows_is_told() -> None:
    """To who applies the pod, or what makes it; the pod runs all the same."""
    pod = raw("--time=10", terminationGracePeriodSeconds=600)
    text = (
        "terminationGracePeriodSeconds 600 is longer than the job's time limit allows: a pod that reaches the limit "
        "(00:10:00) has 300 s to end, half of it"
    )
    assert reviews().review("Pod", pod) == (None, [text])
    made = {"metadata": {"name": "w", "namespace": "ns"}, "spec": {"template": pod}}
    assert reviews().review("Job", made) == (None, [f"pods of this Job: {text}"])


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--nodes=2", "--nodes=2: the pod's containers run on the first of its job's nodes; the others are held"),
        ("-N 1-4", "--nodes=1-4: the pod's"),
        ("-w c1,c2", "--nodelist=c1,c2: the pod's"),
        ("--nodelist=c[1-2]", "--nodelist=c[1-2]: the pod's"),
        ("--nodes=1", ""),
        ("--nodelist=c1", ""),
        ("--nodelist=./nodes,of-mine", ""),
        (
            "-n 8",
            "--ntasks=8: Slurm may take several nodes for that, and the pod's containers run on the first of them",
        ),
        ("-n 8 -N 1", ""),
        ("-n 1", ""),
    ],
)
def test_nodes_that_a_job_holds_for_nothing_are_told(flags: str, words: str) -> None:
    """A container may start programs there itself, so it is no refusal; who applies a workload hears it as well."""
    pod = raw(flags)
    refusal, warnings = reviews().review("Pod", pod)
    assert (refusal, len(warnings)) == (None, bool(words))
    assert all(text.startswith(words) for text in warnings)
    made = {"metadata": {"name": "w", "namespace": "ns"}, "spec": {"template": pod}}
    assert reviews().review("Job", made) == (None, [f"pods of this Job: {text}" for text in warnings])


@pytest.mark.parametrize("kind", ["Deployment", "CronJob"])
def test_who_applies_a_workload_is_warned_of_its_pods(kind: str) -> None:
    """The workload itself is nobody's to refuse."""
    template = {"metadata": raw("-p nosuch")["metadata"], "spec": raw()["spec"]}
    spec: dict[str, Any] = {"template": template}
    if kind == "CronJob":
        spec = {"jobTemplate": {"spec": spec}}
    refusal, (warning,) = reviews().review(kind, {"metadata": {"name": "w", "namespace": "ns"}, "spec": spec})
    assert refusal is None
    assert warning.startswith(f"pods of this {kind} will be refused: invalid partition specified: nosuch")


def test_what_a_controller_makes_warns_nobody() -> None:
    """The ReplicaSet of a Deployment has no reader."""
    made = {"metadata": {"name": "w", "namespace": "ns", "ownerReferences": [OWNER]}, "spec": {}}
    assert reviews().review("ReplicaSet", made) == (None, [])


@pytest.mark.parametrize(
    ("nodes", "is_refused"),
    [
        ({"g1": "arm64", "c1": "amd64"}, True),
        ({"g1": "amd64", "c1": "arm64"}, False),
        ({"c1": "amd64"}, False),
        ({}, False),
    ],
)
def test_a_partition_of_another_architecture_is_refused_with_both_names(
    nodes: dict[str, str],
    *,
    is_refused: bool,
) -> None:
    """A binary of another machine would only say "exec format error"; a node that is not known refuses nothing."""
    cluster = dataclasses.replace(CLUSTER, architectures=nodes, architecture="amd64")
    refusal, _ = reviews(cluster).review("Pod", raw("-p gpu"))
    assert (refusal is not None) == is_refused
    if refusal:
        assert "linux/amd64" in refusal
        assert refusal.endswith("the nodes of partition gpu are linux/arm64")


async def test_what_sbatch_told_one_pod_the_controllers_next_ones_hear_at_once() -> None:
    """The same text, so that the controller backs off."""
    shut = gate.Gate(on_open=lambda _uid: None)
    reviewer = review.Reviews(cluster=lambda: CLUSTER, gate=shut)
    asked = admit.admit(raw("--account=no", owned=True), cluster=CLUSTER)
    with pytest.raises(errors.JobRefused):
        async with shut.turn("u", asked.lanes):
            raise errors.JobRefused(slurm.REFUSALS["account"])
    assert reviewer.review("Pod", raw("--account=no", owned=True)) == (slurm.REFUSALS["account"], [])
    assert reviewer.review("Pod", raw(owned=True)) == (None, [])


def test_an_ephemeral_container_is_refused_by_name_before_it_is_there() -> None:
    """One that is there already, and cannot be taken away, keeps no other out."""
    bad = {"name": "bad", "image": "i", "securityContext": {"privileged": True}}
    worse = {"name": "worse", "image": "i", "volumeDevices": [{"name": "v", "devicePath": "/dev/x"}]}
    good = {"name": "good", "image": "i"}
    part = {"part": "ephemeralcontainers"}
    refusal, _ = reviews().review("Pod", raw(ephemeralContainers=[bad]), old=raw(), **part)
    assert refusal
    assert "container bad: securityContext.privileged" in refusal
    before = raw(ephemeralContainers=[bad])
    assert reviews().review("Pod", raw(ephemeralContainers=[bad, good]), old=before, **part)[0] is None
    refusal, _ = reviews().review("Pod", raw(ephemeralContainers=[bad, worse]), old=before, **part)
    assert refusal
    assert refusal.startswith("spec.ephemeralContainers[1].volumeDevices is not supported")


@pytest.mark.parametrize(
    ("pod", "words"),
    [
        (raw(requests={"cpu": "17"}), "cpu: 17 requested, 16 offered by the largest node of partition main."),
        (raw("-p gpu", requests={"cpu": "5"}), "cpu: 5 requested, 4 offered by the largest node of partition gpu."),
        (raw("-p hidden", requests={"cpu": "17"}), "16 offered by the largest node."),
        (raw(requests={"memory": "40Gi"}), "1 Insufficient memory."),
        (raw("-p gpu", requests={"nvidia.com/gpu": 3}), "nvidia.com/gpu: 3 requested, 2 offered"),
        (raw(nodeSelector={"disk": "ssd"}), "1 node(s) didn't match Pod's node affinity/selector."),
        (raw(schedulerName="volcano"), "scheduler 'volcano'"),
        (raw(nodeName="c1"), "there is no node c1, for all of Slurm is the node hpk; leave nodeName out"),
        (raw(runtimeClassName="kata"), 'no runtime for "kata-qemu" is configured'),
        (raw(runtimeClassName="gone"), 'RuntimeClass "gone" not found'),
    ],
)
def test_what_a_pod_will_wait_for_is_a_warning(pod: dict[str, Any], words: str) -> None:
    """It may exist, and whoever applies it learns at once why it does not run; a controller's is created unsaid."""
    cluster = dataclasses.replace(CLUSTER, runtime_handlers={"kata": "kata-qemu", "plain": "runc"})
    refusal, (warning,) = reviews(cluster).review("Pod", pod)
    assert refusal is None
    assert words in warning
    owned = {**pod, "metadata": {**pod["metadata"], "ownerReferences": [OWNER]}}
    assert reviews(cluster).review("Pod", owned) == (None, [])
    workload = {"metadata": {"name": "w", "namespace": "ns"}, "spec": {"template": pod}}
    refusal, (warning,) = reviews(cluster).review("Deployment", workload)
    assert refusal is None
    assert words in warning


def test_of_two_flags_annotations_that_differ_one_is_said_to_be_unread() -> None:
    """As the README says, the newer spelling counts; two that say the same need no words."""
    pod = raw()
    pod["metadata"]["annotations"] = {"slurm.hpk.io/flags": "--nice=1", "slurm-job.hpk.io/flags": "--nice=2"}
    words = "annotation slurm-job.hpk.io/flags is not read: the pod has slurm.hpk.io/flags too, which counts instead"
    assert reviews().review("Pod", pod) == (None, [words])
    workload = {"metadata": {"name": "w", "namespace": "ns"}, "spec": {"template": pod}}
    assert reviews().review("Deployment", workload) == (None, [f"pods of this Deployment: {words}"])
    pod["metadata"]["annotations"]["slurm-job.hpk.io/flags"] = "--nice=1"
    assert reviews().review("Pod", pod) == (None, [])


def test_what_needs_no_warning_has_none() -> None:
    """A known runtime, a gate that somebody has set, a node that somebody has chosen."""
    cluster = dataclasses.replace(CLUSTER, runtime_handlers={"plain": "runc"})
    assert reviews(cluster).review("Pod", raw(runtimeClassName="plain")) == (None, [])
    gated = raw(schedulingGates=[{"name": "example.com/quota"}], nodeSelector={"disk": "ssd"})
    assert reviews().review("Pod", gated) == (None, [])


def test_a_pod_that_is_put_on_the_node_by_hand_is_refused_where_it_does_not_fit() -> None:
    """It cannot wait: it is bound."""
    refusal, _ = reviews().review("Pod", raw(nodeName="hpk", requests={"cpu": "17"}))
    assert refusal
    assert "cpu, requested: 17, capacity: 16 (the largest node of partition main)" in refusal


def test_the_flags_of_a_pod_on_the_node_are_what_they_were() -> None:
    """Its job is made from them; until it is bound they may change, if the new ones can be read."""
    refusal, _ = reviews().review("Pod", raw("-p gpu", nodeName="hpk"), old=raw("-p main", nodeName="hpk"))
    assert refusal
    assert "annotation slurm.hpk.io/flags cannot be changed now" in refusal
    assert reviews().review("Pod", raw("-p gpu"), old=raw("-p main")) == (None, [])
    refusal, _ = reviews().review("Pod", raw("--wrap=x"), old=raw())
    assert refusal
    assert "--wrap" in refusal


def test_a_change_is_not_refused_for_what_was_there_before() -> None:
    """A pod that the kubelet will refuse must still let go of its finalizers, and take labels."""
    assert reviews().review("Pod", raw(hostPID=True, priority=1), old=raw(hostPID=True)) == (None, [])
    assert reviews().review("Pod", raw(nodeName="hpk", hostPID=True), old=raw(nodeName="hpk")) == (None, [])


def test_a_pod_is_not_resized() -> None:
    """By name, at once: kubectl would wait for what never comes."""
    old, new = raw(requests={"cpu": "1"}, nodeName="hpk"), raw(requests={"cpu": "2"}, nodeName="hpk")
    assert reviews().review("Pod", new, old=old, part="resize") == (review.RESIZE, [])
    assert reviews().review("Pod", old, old=old, part="resize") == (None, [])


def test_affinity_to_pods_of_other_namespaces_is_judged_by_these_namespaces_labels() -> None:
    """As the binder does, or the warning would not be true."""
    there = {"metadata": {"name": "a", "namespace": "other", "uid": "a", "labels": {"app": "x"}}, "spec": {}}
    term = {"topologyKey": "host", "labelSelector": {"matchLabels": {"app": "x"}}}
    term["namespaceSelector"] = {"matchLabels": {"team": "a"}}
    pod = raw(affinity={"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}})
    made = reviews(dataclasses.replace(CLUSTER, labels={"host": "hpk"}))
    assert made._others is not None
    made._others.update("a", there)
    assert "didn't match pod affinity rules" in made.review("Pod", pod)[1][0]
    made.namespaces = lambda: {"other": {"team": "a"}}
    assert made.review("Pod", pod) == (None, [])
