"""The typed view of a pod keeps what HPK honours."""

from __future__ import annotations

from typing import Any

from hpk.kube import v1


def spec(**fields: Any) -> dict[str, Any]:
    """A raw spec of one container."""
    return {"containers": [{"name": "c", "image": "i"}], **fields}


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
