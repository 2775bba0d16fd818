"""A pod that somebody has put on the node is refused where it does not fit, as a kubelet refuses it."""

from __future__ import annotations

import dataclasses
from decimal import Decimal
from typing import Any

import pytest

from hpk import errors
from hpk.kube import v1
from hpk.pods import admit, fit
from tests.unit.pods import test_admit
from tests.unit.pods.test_admit import raw

CLUSTER = test_admit.CLUSTER


@pytest.mark.parametrize(
    ("pod", "reason"),
    [
        (raw({"resources": {"requests": {"cpu": "9"}}}), "OutOfcpu"),
        (raw({"resources": {"limits": {"memory": "17Gi"}}}), "OutOfmemory"),
        (raw({"resources": {"limits": {"nvidia.com/gpu": 3}}}), "OutOfnvidia.com/gpu"),
        (raw({"resources": {"limits": {"example.com/fpga": 1}}}), "OutOfexample.com/fpga"),
        (raw(nodeSelector={"kubernetes.io/os": "windows"}), "NodeAffinity"),
    ],
)
def test_what_the_node_does_not_have_is_refused_with_the_kubelets_reason(pod: Any, reason: str) -> None:
    """Only of pods that are bound already: others wait."""
    with pytest.raises(errors.PodRefused) as caught:
        fit.check(admit.derive(v1.pod(pod), CLUSTER), CLUSTER)
    assert caught.value.reason == reason


def test_what_others_have_added_to_the_node_counts() -> None:
    """Labels and resources of the node object, whoever has set them."""
    mine = dataclasses.replace(
        CLUSTER, labels={**CLUSTER.labels, "disk": "ssd"}, extended={"example.com/fpga": Decimal(2)}
    )
    pod = v1.pod(raw({"resources": {"limits": {"example.com/fpga": 1}}}, nodeSelector={"disk": "ssd"}))
    fit.check(admit.derive(pod, mine), mine)
    with pytest.raises(errors.PodRefused):
        fit.check(admit.derive(pod, CLUSTER), CLUSTER)
