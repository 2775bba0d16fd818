"""A pod's objects are found by what it refers to, and read as the node authorizer allows."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from hpk import errors
from hpk.kube import v1
from hpk.volumes import sources
from tests import virtual
from tests.fakes import kube

pytestmark = pytest.mark.virtual_time

NAMESPACE = "/api/v1/namespaces/ns"


def pod(container: dict[str, Any] | None = None, **spec: Any) -> v1.Pod:
    """A pod of one container."""
    meta = {"name": "p", "namespace": "ns", "uid": "u"}
    return v1.pod({"metadata": meta, "spec": {"containers": [{"name": "c", **(container or {})}], **spec}})


async def gather(api: kube.FakeKube, one: v1.Pod) -> sources.Sources:
    """Fetch all that the pod needs."""
    client: Any = api
    return await sources.gather(client, one, shared=sources.SharedConfigMaps())


def test_every_reference_of_a_pod_is_known() -> None:
    """Volumes, projections, environments of init containers too, and pull secrets."""
    one = pod(
        {"envFrom": [{"configMapRef": {"name": "c1"}}, {"secretRef": {"name": "s1"}}]},
        initContainers=[
            {
                "name": "i",
                "env": [
                    {"name": "A", "valueFrom": {"configMapKeyRef": {"name": "c2", "key": "k"}}},
                    {"name": "B", "valueFrom": {"secretKeyRef": {"name": "s2", "key": "k"}}},
                ],
            }
        ],
        volumes=[
            {"name": "1", "configMap": {"name": "c3"}},
            {"name": "2", "secret": {"secretName": "s3"}},
            {
                "name": "3",
                "projected": {
                    "sources": [
                        {"configMap": {"name": "c4"}},
                        {"secret": {"name": "s4"}},
                        {"serviceAccountToken": {"path": "t", "audience": "vault", "expirationSeconds": 600}},
                    ]
                },
            },
        ],
        imagePullSecrets=[{"name": "s5"}],
    )
    assert sources.needs(one) == sources.Needs(
        config_maps=frozenset({"c1", "c2", "c3", "c4"}),
        secrets=frozenset({"s1", "s2", "s3", "s4", "s5"}),
        tokens=frozenset({("vault", 600)}),
    )


async def test_what_does_not_exist_is_none() -> None:
    """Whether that matters is for the volume and the container to say."""
    found = await gather(kube.FakeKube(), pod(volumes=[{"name": "v", "configMap": {"name": "gone"}}]))
    assert found.config_maps == {"gone": None}


async def test_a_first_refusal_of_the_node_authorizer_passes() -> None:
    """Its graph lags the binding: a 403 is asked again, and only a lasting one is an error."""
    api = kube.FakeKube()
    api.put(f"{NAMESPACE}/secrets/s", {"metadata": {"name": "s"}, "data": {}})
    wants = pod(volumes=[{"name": "v", "secret": {"secretName": "s"}}])
    for _ in range(2):
        api.fail(errors.Rejected("no relationship found"))
    assert (await gather(api, wants)).secrets["s"] is not None
    for _ in range(len(sources.SECONDS_TRIES) + 1):
        api.fail(errors.Rejected("no relationship found"))
    with pytest.raises(errors.Rejected):
        await gather(api, wants)


async def test_a_token_is_bound_to_the_pod() -> None:
    """NodeRestriction lets no other through: name and UID of this pod, its audience, its life time."""
    api, bodies = kube.FakeKube(), list[Any]()

    def issue(body: Any) -> Any:
        bodies.append(body)
        return {"status": {"token": "t"}}

    api.reactions[f"{NAMESPACE}/serviceaccounts/robot/token"] = issue
    token = {"serviceAccountToken": {"path": "t", "audience": "vault", "expirationSeconds": 600}}
    one = pod(serviceAccountName="robot", volumes=[{"name": "v", "projected": {"sources": [token]}}])
    assert (await gather(api, one)).tokens["vault", 600].text == "t"
    spec = bodies[0]["spec"]
    assert (spec["audiences"], spec["expirationSeconds"]) == (["vault"], 600)
    assert spec["boundObjectRef"] == {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"}


@pytest.mark.parametrize(
    ("asked", "expires_in", "earliest", "latest"),
    [(600, None, 430, 481), (600, 3600, 2590, 2881), (10 * 86400, 10 * 86400, 77000, 86401)],
)
async def test_a_token_is_renewed_before_it_ends(
    monkeypatch: pytest.MonkeyPatch, asked: int, expires_in: int | None, earliest: float, latest: float
) -> None:
    """When the kubelet would: after four fifths of the life that the API server gave it, a day at most."""
    api: Any = kube.FakeKube()
    monkeypatch.setattr(sources, "time", virtual.Time())
    now = virtual.EPOCH
    expiry = {} if expires_in is None else {"expirationTimestamp": _stamp(now + expires_in)}
    api.reactions[f"{NAMESPACE}/serviceaccounts/robot/token"] = lambda _: {"status": {"token": "t", **expiry}}
    found = await sources.token(api, pod(serviceAccountName="robot"), ("", asked))
    assert earliest <= found.renew_at - now <= latest


def _stamp(at: float) -> str:
    return datetime.fromtimestamp(at, tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


async def test_the_authorities_map_is_read_once_for_all_pods() -> None:
    """A thousand pods mount kube-root-ca.crt; every other ConfigMap is read anew."""
    api, shared = kube.FakeKube(), sources.SharedConfigMaps()
    client: Any = api
    for name in (shared.ROOT_CA, "mine"):
        api.put(f"{NAMESPACE}/configmaps/{name}", {"metadata": {"name": name}, "data": {}})
    for _ in range(2):
        for name in (shared.ROOT_CA, "mine"):
            assert await shared.get(client, "ns", name) is not None
    assert api.verbs(f"{NAMESPACE}/configmaps/{shared.ROOT_CA}") == ["get"]
    assert api.verbs(f"{NAMESPACE}/configmaps/mine") == ["get", "get"]
