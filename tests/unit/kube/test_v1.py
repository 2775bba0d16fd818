"""The typed view of a pod keeps what HPK honours, and names the rest."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from hpk.kube import v1


def spec(**fields: Any) -> dict[str, Any]:
    """A raw spec of one container."""
    return {"containers": [{"name": "c", "image": "i"}], **fields}


@pytest.mark.parametrize(
    ("raw", "paths"),
    [
        (spec(), []),
        (spec(hostPID=True, hostIPC=False), ["spec.hostPID"]),
        (spec(volumes=[{"name": "a", "emptyDir": {}}, {"name": "b", "nfs": {"server": "x"}}]), ["spec.volumes[1].nfs"]),
        (
            {"containers": [{"name": "c", "securityContext": {"procMount": "Unmasked"}, "volumeDevices": [{}]}]},
            ["spec.containers[0].volumeDevices", "spec.containers[0].securityContext.procMount"],
        ),
        (spec(securityContext={"sysctls": [{"name": "a"}]}), ["spec.securityContext.sysctls"]),
        (
            {"containers": [{"name": "c", "env": [{"name": "A", "valueFrom": {"fileKeyRef": {"key": "k"}}}]}]},
            ["spec.containers[0].env[0].valueFrom.fileKeyRef"],
        ),
    ],
)
def test_every_set_field_beyond_the_model_is_named(raw: dict[str, Any], paths: list[str]) -> None:
    """By its path, at any depth; what is false or empty asks for nothing."""
    assert v1.unsupported(raw) == paths


@pytest.mark.parametrize("empty", [None, False, 0, "", [], {}])
def test_an_unknown_field_that_asks_for_nothing_is_not_named(empty: Any) -> None:
    """The API server fills in such defaults itself."""
    assert v1.unsupported(spec(someday=empty)) == []


def test_the_models_are_described_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second pod costs no look at the structs: thousands are admitted at a time."""
    raw = spec(volumes=[{"name": "a", "emptyDir": {}}, {"name": "b", "nfs": {"server": "x"}}])
    first = v1.unsupported(raw)
    monkeypatch.setattr(msgspec.structs, "fields", None)
    assert v1.unsupported(raw) == first == ["spec.volumes[1].nfs"]


def test_a_pod_is_read_by_the_apis_names() -> None:
    """Acronyms in the API's spelling are found too."""
    raw = {
        "metadata": {"name": "p", "namespace": "ns", "deletionTimestamp": "2026-01-02T03:04:05Z"},
        "spec": spec(
            initContainers=[{"name": "i"}],
            hostAliases=[{"ip": "192.0.2.1"}],
            volumes=[
                {"name": "d", "downwardAPI": {"items": [{"path": "x", "fieldRef": {"fieldPath": "metadata.uid"}}]}}
            ],
            activeDeadlineSeconds=7,
        ),
    }
    pod = v1.pod(raw)
    assert pod.where == "ns/p"
    assert [c.name for c in pod.all_containers] == ["i", "c"]
    assert pod.metadata.deletion_timestamp is not None
    assert pod.spec.active_deadline_seconds == 7
    downward = pod.spec.volumes[0].downward_api
    assert downward is not None
    assert downward.items[0].field_ref == v1.FieldSelector(field_path="metadata.uid")
