"""Volumes become the files that the kubelet would have made of them."""

from __future__ import annotations

import base64
from decimal import Decimal
from typing import Any

import pytest

from hpk import jobdir
from hpk.kube import v1
from hpk.volumes import plan, sources

FOUND = sources.Sources(
    config_maps={
        "settings": {"data": {"a": "1", "b": "two"}, "binaryData": {"raw": base64.b64encode(b"\xff\0").decode()}},
        "none": None,
    },
    secrets={"s": {"data": {"key": base64.b64encode(b"\x80secret").decode()}}, "none": None},
    tokens={("", 3600): sources.IssuedToken("a-token", 10.0), ("vault", 600): sources.IssuedToken("another", 20.0)},
)
LIMITED = {"name": "c", "resources": {"limits": {"memory": "64Mi"}, "requests": {"cpu": "250m"}}}


def made(**volume: Any) -> dict[str, Any]:
    """The volume for the agent."""
    meta = {"name": "p", "namespace": "ns", "uid": "u", "labels": {"b": "2", "a": 'say "1"\n'}}
    pod = v1.pod({"metadata": meta, "spec": {"containers": [LIMITED], "volumes": [{"name": "v", **volume}]}})
    (found,) = plan.volumes(pod, FOUND, allocatable={"cpu": Decimal(8), "memory": Decimal(1 << 30)})
    return dict(found)


def files(**volume: Any) -> dict[str, tuple[int, bytes]]:
    """Its files: mode and content by path."""
    return {file["path"]: (file["mode"], base64.b64decode(file["data"])) for file in made(**volume)["files"]}


def test_a_config_map_becomes_a_file_for_each_key() -> None:
    """Text and binary data alike, 0644 unless the volume says."""
    assert files(configMap={"name": "settings"}) == {
        "a": (0o644, b"1"),
        "b": (0o644, b"two"),
        "raw": (0o644, b"\xff\0"),
    }


def test_items_choose_keys_paths_and_modes() -> None:
    """Only what is listed, each with its own mode or the volume's."""
    items = [{"key": "a", "path": "x/y"}, {"key": "b", "path": "z", "mode": 0o400}]
    assert files(configMap={"name": "settings", "items": items, "defaultMode": 0o600}) == {
        "x/y": (0o600, b"1"),
        "z": (0o400, b"two"),
    }


def test_secrets_are_byte_exact() -> None:
    """What is not UTF-8 arrives unchanged."""
    assert files(secret={"secretName": "s", "defaultMode": 0o440}) == {"key": (0o440, b"\x80secret")}


@pytest.mark.parametrize(
    ("volume", "words"),
    [
        ({"configMap": {"name": "none"}}, 'configmap "none" not found'),
        ({"secret": {"secretName": "none"}}, 'secret "none" not found'),
        ({"configMap": {"name": "settings", "items": [{"key": "q", "path": "q"}]}}, "non-existent key: q"),
    ],
)
def test_what_is_missing_is_said_in_the_kubelets_words(volume: dict[str, Any], words: str) -> None:
    """With the volume's name; where it is optional it is left out."""
    with pytest.raises(plan.SourceMissing) as caught:
        made(**volume)
    assert str(caught.value).startswith('MountVolume.SetUp failed for volume "v" : ')
    assert words in str(caught.value)
    ((kind, source),) = volume.items()
    assert files(**{kind: {**source, "optional": True}}) == {}


def test_the_token_volume_of_a_service_account_is_complete() -> None:
    """Token, authority and namespace, as admission asks for them in every pod."""
    volume = {
        "defaultMode": 0o640,
        "sources": [
            {"serviceAccountToken": {"path": "token", "expirationSeconds": 3600}},
            {"configMap": {"name": "settings", "items": [{"key": "a", "path": "ca.crt"}]}},
            {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
        ],
    }
    assert files(projected=volume) == {
        "token": (0o640, b"a-token"),
        "ca.crt": (0o640, b"1"),
        "namespace": (0o640, b"ns"),
    }


def test_a_later_projection_wins() -> None:
    """Two sources of one path are the last one's."""
    one, two = (
        {"serviceAccountToken": {"path": "t"}},
        {"secret": {"name": "s", "items": [{"key": "key", "path": "t"}]}},
    )
    assert files(projected={"sources": [one, two]}) == {"t": (0o644, b"\x80secret")}


def test_the_downward_api_speaks_of_the_pod() -> None:
    """Sorted, quoted label lines without a final newline; limits as whole numbers of the divisor."""
    items = [
        {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}},
        {"path": "one", "fieldRef": {"fieldPath": "metadata.labels['b']"}, "mode": 0o400},
        {"path": "memory", "resourceFieldRef": {"containerName": "c", "resource": "limits.memory", "divisor": "1Mi"}},
        {"path": "cpu", "resourceFieldRef": {"containerName": "c", "resource": "requests.cpu"}},
        {"path": "whole", "resourceFieldRef": {"containerName": "c", "resource": "limits.cpu"}},
    ]
    assert files(downwardAPI={"items": items}) == {
        "labels": (0o644, b'a="say \\"1\\"\\n"\nb="2"'),
        "one": (0o400, b"2"),
        "memory": (0o644, b"64"),
        "cpu": (0o644, b"1"),
        "whole": (0o644, b"8"),
    }


def test_an_empty_directory_keeps_medium_and_limit() -> None:
    """The limit in whole bytes."""
    assert made(emptyDir={"medium": "Memory", "sizeLimit": "1.5Ki"}) == {
        "name": "v",
        "kind": "empty_dir",
        "medium": "Memory",
        "size_limit": 1536,
    }
    assert made(emptyDir={})["size_limit"] is None


@pytest.mark.parametrize(
    ("directory", "limit", "size"),
    [
        ({"medium": "Memory"}, 4096, 4096),
        ({"medium": "Memory", "sizeLimit": "1Ki"}, 4096, 1024),
        ({"medium": "Memory", "sizeLimit": "8Ki"}, 4096, 4096),
        ({"medium": "Memory"}, None, None),
        ({"sizeLimit": "8Ki"}, 4096, 8192),
        ({}, 4096, None),
    ],
)
def test_a_directory_in_memory_is_no_larger_than_the_pod_s_memory(
    directory: dict[str, Any], limit: int | None, size: int | None
) -> None:
    """Not half of the node's memory, which is what a file system in memory has by itself."""
    spec = {"containers": [{"name": "c"}], "volumes": [{"name": "v", "emptyDir": directory}]}
    pod = v1.pod({"metadata": {"name": "p", "namespace": "ns", "uid": "u"}, "spec": spec})
    (found,) = plan.volumes(pod, FOUND, allocatable={}, memory_limit=limit)
    assert found["size_limit"] == size


def test_a_host_path_keeps_its_type() -> None:
    """For the agent to check on the compute node."""
    volume = made(hostPath={"path": "/data", "type": "Directory"})
    assert (volume["kind"], volume["host_path"], volume["host_path_type"]) == ("host_path", "/data", "Directory")


def test_the_pods_address_is_the_agents_to_fill_in() -> None:
    """It is known only in the job."""
    items = [{"path": "ip", "fieldRef": {"fieldPath": "status.podIP"}}]
    assert files(downwardAPI={"items": items})["ip"][1].decode() == jobdir.POD_IP


@pytest.mark.parametrize(
    ("theirs", "own", "mode", "owner"),
    [
        ({}, [{}, {}], 0o644, None),
        ({"runAsUser": 1000}, [{}, {}], 0o600, 1000),
        ({}, [{"runAsUser": 7}, {"runAsUser": 7}], 0o600, 7),
        ({"runAsUser": 1000}, [{}, {"runAsUser": 7}], 0o644, None),
        ({}, [{"runAsUser": 7}, {}], 0o644, None),
        ({"runAsUser": 0}, [{}, {}], 0o600, 0),
        ({"fsGroup": 50}, [{}, {}], 0o600, None),
    ],
)
def test_a_token_belongs_to_the_only_user(
    theirs: dict[str, Any], own: list[dict[str, Any]], mode: int, owner: int | None
) -> None:
    """Of all containers, init ones included; what else is in the volume keeps its mode."""
    token = {"serviceAccountToken": {"path": "token", "expirationSeconds": 3600}}
    names = {"downwardAPI": {"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}}
    containers = [{"name": f"c{n}", "image": "i", "securityContext": one} for n, one in enumerate(own)]
    volume = {"name": "v", "projected": {"defaultMode": 0o644, "sources": [token, names]}}
    spec = {"containers": containers[:1], "initContainers": containers[1:], "volumes": [volume]}
    pod = v1.pod(
        {"metadata": {"name": "p", "namespace": "ns", "uid": "u"}, "spec": {**spec, "securityContext": theirs}}
    )
    (made,) = plan.volumes(pod, FOUND, allocatable={})
    name, secret = made["files"]
    assert (secret["path"], secret["mode"], secret.get("uid")) == ("token", mode, owner)
    assert (name["mode"], "uid" in name) == (0o644, False)
