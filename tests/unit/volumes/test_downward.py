"""The downward API formats what a pod may know of itself as the kubelet does."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from hpk import errors, jobdir
from hpk.kube import v1
from hpk.volumes import downward

META = {"name": "p", "namespace": "ns", "uid": "u", "labels": {"l": "1"}, "annotations": {"a/b": "x\ty"}}
CONTAINER = {"name": "c", "resources": {"limits": {"cpu": "1500m"}, "requests": {"memory": "1Gi"}}}
POD = v1.pod({"metadata": META, "spec": {"containers": [CONTAINER], "nodeName": "hpk", "serviceAccountName": "robot"}})


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("metadata.name", "p"),
        ("metadata.namespace", "ns"),
        ("metadata.uid", "u"),
        ("metadata.labels['l']", "1"),
        ("metadata.labels['absent']", ""),
        ("metadata.annotations['a/b']", "x\ty"),
        ("metadata.annotations", 'a/b="x\\ty"'),
        ("spec.nodeName", "hpk"),
        ("spec.serviceAccountName", "robot"),
        ("status.hostIP", jobdir.HOST_IP),
        ("status.podIPs", jobdir.POD_IP),
    ],
)
def test_each_field_has_its_value(path: str, value: str) -> None:
    """As pkg/fieldpath extracts it."""
    assert downward.field(POD, path) == value


def test_an_unknown_field_is_refused_with_the_known_ones() -> None:
    """Never an empty string in its place."""
    with pytest.raises(errors.PodRefused, match=r"'status\.phase' is not supported \(known: metadata\.name"):
        downward.field(POD, "status.phase")


@pytest.mark.parametrize(
    ("ref", "value"),
    [
        ({"resource": "limits.cpu"}, "2"),
        ({"resource": "limits.cpu", "divisor": "1m"}, "1500"),
        ({"resource": "requests.cpu"}, "2"),  # a limit alone is the request too
        ({"resource": "requests.memory", "divisor": "1Mi"}, "1024"),
        ({"resource": "limits.memory"}, "4096"),  # without a limit: all that the node has
        ({"resource": "requests.ephemeral-storage"}, "0"),
    ],
)
def test_each_resource_is_a_whole_number_of_the_divisor(ref: dict[str, Any], value: str) -> None:
    """Rounded up."""
    selector = v1.pod(  # decoded as the API server sends it
        {
            "metadata": META,
            "spec": {
                "containers": [{"name": "c", "env": [{"name": "X", "valueFrom": {"resourceFieldRef": ref}}]}],
            },
        }
    ).spec.containers[0]
    source = selector.env[0].value_from
    assert source is not None
    assert source.resource_field_ref is not None
    allocatable = {"memory": Decimal(4096)}
    assert downward.resource(POD, "c", source.resource_field_ref, allocatable=allocatable) == value


@pytest.mark.parametrize(
    "ref",
    [
        v1.ResourceFieldSelector(resource="limits.cpu", container_name="x"),
        v1.ResourceFieldSelector(resource="used.cpu"),
    ],
)
def test_what_does_not_exist_is_refused(ref: v1.ResourceFieldSelector) -> None:
    """A container or a resource that the pod does not have."""
    with pytest.raises(errors.PodRefused):
        downward.resource(POD, "c", ref, allocatable={})


def test_characters_that_do_not_print_are_escaped_as_go_does() -> None:
    """Quote, backslash, control characters, and beyond the basic plane."""
    assert downward.as_lines({"k": 'a"b\\c\n\x01\u200b\U000e0001é'}) == 'k="a\\"b\\\\c\\n\\x01\\u200b\\U000e0001é"'
