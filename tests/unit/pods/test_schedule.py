"""What hinders a pod is told in kube-scheduler's words, and only what a scheduler would hold back."""

from __future__ import annotations

import dataclasses
from decimal import Decimal
from typing import Any

import pytest

from hpk.kube import selectors, v1
from hpk.pods import admit, occupants, schedule
from tests.unit.pods import test_review

CLUSTER = dataclasses.replace(
    test_review.CLUSTER,
    labels={"kubernetes.io/hostname": "hpk", "disk": "ssd"},
    allocatable={"cpu": Decimal(28), "pods": Decimal(3)},
)
Wants = schedule.Wants


def pod(
    name: str = "p", *, labels: dict[str, str] | None = None, requests: dict[str, Any] | None = None, **spec: Any
) -> Any:
    """A raw pod of one container."""
    meta = {"name": name, "namespace": "ns", "uid": name, "labels": labels or {}, "annotations": {}}
    container = {"name": "c", "image": "i", "resources": {"requests": requests or {}}}
    return {"metadata": meta, "spec": {"containers": [container], **spec}}


def on_node(*pods: Any) -> occupants.Occupants:
    """The node with these pods on it."""
    made = occupants.Occupants()
    for one in pods:
        made.update(one["metadata"]["uid"], one)
    return made


def hindrance(raw: Any, *others: Any, **change: Any) -> schedule.Hindrance | None:
    """What hinders this pod on a node that has the others."""
    around = schedule.Surroundings(others=on_node(*others), namespaces=lambda: {"ns": {"team": "a"}})
    cluster = dataclasses.replace(CLUSTER, **change)
    return schedule.hindrance(admit.derive(v1.pod(raw), cluster), cluster, around)


def anti(**labels: str) -> dict[str, Any]:
    """Required anti-affinity to pods of these labels."""
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": labels}}
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


def together(**labels: str) -> dict[str, Any]:
    """Required affinity to pods of these labels."""
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": labels}}
    return {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


CORDON = {"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}
TAINT = selectors.Taint(key="k", value="v", effect="NoSchedule")
NO_FIT = "0/1 nodes are available: 1 "


def test_nothing_hinders_a_plain_pod() -> None:
    """Nor one whose CPUs are all taken just now: the queue for them is Slurm's."""
    assert hindrance(pod()) is None
    assert hindrance(pod(requests={"cpu": "16"}), pod("a", requests={"cpu": "28"})) is None


def test_a_cordoned_node_takes_who_tolerates_that() -> None:
    """As daemon sets' pods do."""
    found = hindrance(pod(), is_unschedulable=True)
    assert found
    assert found.message.startswith(f"{NO_FIT}node(s) were unschedulable. The node is cordoned: kubectl uncordon hpk")
    assert hindrance(pod(tolerations=[CORDON]), is_unschedulable=True) is None


def test_a_tainted_node_takes_who_tolerates_the_taint() -> None:
    """The message names it."""
    found = hindrance(pod(), taints=(TAINT,))
    assert found
    assert found.message == f"{NO_FIT}node(s) had untolerated taint(s). Not tolerated by the pod: {{k: v}}."
    assert hindrance(pod(tolerations=[{"key": "k", "value": "v"}]), taints=(TAINT,)) is None
    found = hindrance(pod(), taints=(TAINT,), trouble="slurmctld has not answered since noon")
    assert found
    assert found.message.endswith(" The node is not ready: slurmctld has not answered since noon.")


@pytest.mark.parametrize(
    ("spec", "is_met"),
    [
        ({"nodeSelector": {"disk": "ssd"}}, True),
        ({"nodeSelector": {"disk": "hdd"}}, False),
        (
            {
                "affinity": {
                    "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{}]}}
                }
            },
            False,
        ),
    ],
)
def test_a_node_of_other_labels_is_waited_for(spec: dict[str, Any], *, is_met: bool) -> None:
    """They may come; the hint says how to choose among Slurm's nodes."""
    found = hindrance(pod(**spec))
    assert (found is None) is is_met
    if found:
        assert found.message.startswith(f"{NO_FIT}node(s) didn't match Pod's node affinity/selector. Node hpk")
        assert "--constraint" in found.message


def test_what_no_compute_node_has_is_waited_for() -> None:
    """With what is wanted, what is there, and where; extended resources nobody has, too."""
    found = hindrance(pod(requests={"cpu": "17", "example.com/fpga": 1}))
    assert found
    assert found.message == (
        "0/1 nodes are available: 1 Insufficient cpu, 1 Insufficient example.com/fpga. cpu: 17 requested, 16 offered "
        "by the largest node of partition main. example.com/fpga: 1 requested, 0 offered."
    )
    assert found.wants is Wants.NODE


def test_pods_are_counted_as_a_scheduler_counts_them() -> None:
    """Finished ones do not count, those that are being bound do."""
    finished = {**pod("d"), "status": {"phase": "Succeeded"}}
    assert hindrance(pod(), pod("a"), pod("b"), finished) is None
    found = hindrance(pod(), pod("a"), pod("b"), pod("c"))
    assert found
    assert (found.wants, found.reasons) == (Wants.ROOM, ("Too many pods",))
    node = on_node(pod("a"), pod("b"))
    node.assume(pod("c"))
    node.update("c", pod("c"))
    assert len(node) == 3
    node.update("c", finished)
    assert len(node) == 2


def test_a_pod_that_cannot_be_read_does_not_stop_the_watch() -> None:
    """It counts, and its rules are passed over."""
    odd = pod("a", affinity={"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": "all"}})
    node = on_node(odd)
    assert (len(node), list(node.apart())) == (1, [])


def test_a_pod_that_was_over_before_it_was_seen_bound_leaves_nothing() -> None:
    """The watch broke meanwhile: its rule of being apart must not hold others back for ever."""
    gone = pod("a", affinity=anti(app="x"))
    for after in (None, {**gone, "status": {"phase": "Failed"}}):
        freed: list[str] = []
        node = occupants.Occupants()
        node.on_freed = lambda freed=freed: freed.append("one")  # type: ignore[misc]
        node.assume(gone)
        node.update("a", after)
        assert (len(node), list(node.apart()), freed) == (0, [], ["one"])


def test_resources_that_slurm_does_not_know_are_shared_out() -> None:
    """What others have added to the node is nobody else's to count."""
    fpgas = {"example.com/fpga": Decimal(3)}
    taken = pod("a", requests={"example.com/fpga": 2})
    assert hindrance(pod(requests={"example.com/fpga": 1}), taken, extended=fpgas) is None
    found = hindrance(pod(requests={"example.com/fpga": 2}), taken, extended=fpgas)
    assert found
    assert (found.wants, found.reasons) == (Wants.PODS, ("Insufficient example.com/fpga",))
    overhead = pod(overhead={"example.com/fpga": 1}, requests={"example.com/fpga": 1})
    assert hindrance(overhead, taken, extended=fpgas) is not None


@pytest.mark.parametrize(
    ("one", "other", "reason"),
    [
        (pod(affinity=anti(app="a")), pod("o", labels={"app": "a"}), "node(s) didn't match pod anti-affinity rules"),
        (pod(affinity=anti(app="a")), pod("o", labels={"app": "b"}), None),
        (
            pod(labels={"app": "a"}),
            pod("o", affinity=anti(app="a")),
            "node(s) didn't satisfy existing pods anti-affinity rules",
        ),
        (pod(affinity=together(app="a")), pod("o", labels={"app": "a"}), None),
        (pod(affinity=together(app="a")), pod("o"), "node(s) didn't match pod affinity rules"),
        (pod(affinity=together(app="a"), labels={"app": "a"}), pod("o"), None),
    ],
)
def test_pods_are_kept_apart_and_together_on_the_one_node(one: Any, other: Any, reason: str | None) -> None:
    """As a scheduler would, of pods of one namespace; the first of a group that wants its own kind may start."""
    found = hindrance(one, other)
    assert (found.reasons if found else None) == ((reason,) if reason else None)
    assert found is None or "--exclusive" in found.message


def test_terms_of_other_namespaces_choose_them_by_name_or_label() -> None:
    """An empty selector means all namespaces."""
    for more, is_met in (
        ({"namespaceSelector": {"matchLabels": {"team": "a"}}}, True),
        ({"namespaceSelector": {"matchLabels": {"team": "b"}}}, False),
        ({"namespaceSelector": {}}, True),
        ({"namespaces": ["ns"]}, True),
        ({}, False),
    ):
        term = {"topologyKey": "disk", "labelSelector": {"matchLabels": {"app": "a"}}, **more}
        rules = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
        one = pod(affinity=rules)
        one["metadata"]["namespace"] = "mine"
        assert (hindrance(one, pod("o", labels={"app": "a"})) is None) is is_met


def test_pods_are_spread_over_the_domains_of_one_node() -> None:
    """One domain has no skew; two cannot be had, and a node without the label is in none."""
    constraint = {"topologyKey": "disk", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}
    constraint["labelSelector"] = {"matchLabels": {"app": "a"}}
    mine, other = pod("p", labels={"app": "a"}), pod("o", labels={"app": "a"})
    mine["spec"]["topologySpreadConstraints"] = [constraint]
    assert hindrance(mine, other) is None
    constraint["minDomains"] = 2
    assert hindrance(mine) is None
    found = hindrance(mine, other)
    assert found
    assert found.reasons == ("node(s) didn't match pod topology spread constraints",)
    constraint["topologyKey"] = "zone"
    found = hindrance(mine)
    assert found
    assert found.reasons == ("node(s) didn't match pod topology spread constraints (missing required label)",)
    constraint["whenUnsatisfiable"] = "ScheduleAnyway"
    assert hindrance(mine) is None
