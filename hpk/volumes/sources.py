"""The ConfigMaps, Secrets and tokens that a pod refers to, and reading them as the node.

The node authorizer lets the kubelet read only objects that a bound pod refers to, and its graph lags the binding a
little, so a first 403 is retried.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from hpk import errors
from hpk.kube import client, v1
from hpk.volumes import bundles

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

SECONDS_TRIES = (0.02, 0.05, 0.1, 0.2, 0.4, 0.8)
"""Pauses between attempts of a read that the node authorizer does not allow yet."""

RENEWED_AT_PART = 0.8
"""Share of a token's lifetime after which it is renewed; the kubelet's (pkg/kubelet/token/token_manager.go)."""
RENEWED_AT_SECONDS = 86400.0
"""The same for tokens that live for days."""
JITTER_PART = 0.1
"""Random share of that time, so that pods that were created together do not renew together."""

TokenKey = tuple[str, int]  # audience and lifetime in seconds


@dataclass(frozen=True)
class IssuedToken:
    """A service account's token, and the time of its renewal (Unix seconds)."""

    text: str
    renew_at: float


@dataclass(frozen=True)
class Needs:
    """Names of the objects in the pod's namespace that it refers to, optional ones included."""

    config_maps: frozenset[str] = frozenset()
    secrets: frozenset[str] = frozenset()
    tokens: frozenset[TokenKey] = frozenset()
    bundles: frozenset[bundles.Key] = frozenset()


@dataclass(frozen=True)
class Sources:
    """The objects found; a name that maps to None does not exist."""

    config_maps: dict[str, dict[str, Any] | None] = field(default_factory=dict)
    secrets: dict[str, dict[str, Any] | None] = field(default_factory=dict)
    tokens: dict[TokenKey, IssuedToken] = field(default_factory=dict)
    bundles: dict[bundles.Key, str | None] = field(default_factory=dict)


def needs(pod: v1.Pod) -> Needs:
    """Return all that the pod refers to in volumes, environments and pull secrets."""
    config_maps, secrets, tokens, trusted = set[str](), set[str](), set[TokenKey](), set[bundles.Key]()
    for volume in pod.spec.volumes:
        for source in _projections(volume):
            if source.config_map:
                config_maps.add(source.config_map.name)
            if source.secret:
                secrets.add(source.secret.secret_name or source.secret.name)
            if source.service_account_token:
                tokens.add(token_key(source.service_account_token))
            if source.cluster_trust_bundle:
                trusted.add(bundles.key(source.cluster_trust_bundle))
    for container in pod.all_containers:
        config_maps |= {e.config_map_ref.name for e in container.env_from if e.config_map_ref}
        secrets |= {e.secret_ref.name for e in container.env_from if e.secret_ref}
        froms = [e.value_from for e in container.env if e.value_from]
        config_maps |= {f.config_map_key_ref.name for f in froms if f.config_map_key_ref}
        secrets |= {f.secret_key_ref.name for f in froms if f.secret_key_ref}
    secrets |= {reference.name for reference in pod.spec.image_pull_secrets}
    return Needs(frozenset(config_maps - {""}), frozenset(secrets - {""}), frozenset(tokens), frozenset(trusted))


def token_key(source: v1.TokenSource) -> TokenKey:
    """Return the key by which two token requests of one pod are equal."""
    return (source.audience, source.expiration_seconds)


def _projections(volume: v1.Volume) -> Iterator[v1.Projection]:
    """Yield the sources of a volume, a plain one as a projection of itself."""
    if volume.projected:
        yield from volume.projected.sources
    else:
        yield v1.Projection(config_map=volume.config_map, secret=volume.secret, downward_api=volume.downward_api)


async def gather(kube: client.Kube, pod: v1.Pod, *, shared: SharedConfigMaps) -> Sources:
    """Fetch everything concurrently.

    Raises:
        errors.ApiUnavailable: The API server does not respond.
        errors.Rejected: A read was refused for good, such as a token of a deleted service account.
    """
    wanted, namespace = needs(pod), pod.metadata.namespace
    trusted = list(wanted.bundles)
    config_maps, secrets, tokens, certificates = await asyncio.gather(
        asyncio.gather(*(shared.get(kube, namespace, name) for name in sorted(wanted.config_maps))),
        asyncio.gather(*(_read(kube, "secrets", namespace, name) for name in sorted(wanted.secrets))),
        asyncio.gather(*(token(kube, pod, key) for key in sorted(wanted.tokens))),
        asyncio.gather(*(bundles.read(kube, key) for key in trusted)),
    )
    return Sources(
        config_maps=dict(zip(sorted(wanted.config_maps), config_maps, strict=True)),
        secrets=dict(zip(sorted(wanted.secrets), secrets, strict=True)),
        tokens=dict(zip(sorted(wanted.tokens), tokens, strict=True)),
        bundles=dict(zip(trusted, certificates, strict=True)),
    )


class SharedConfigMaps:
    """Reads ConfigMaps, and caches ``kube-root-ca.crt``, which nearly every pod mounts.

    The controller-manager writes it once per namespace; reading it for each of a thousand pods would be most of the
    kubelet's load.
    """

    ROOT_CA = "kube-root-ca.crt"

    def __init__(self) -> None:
        self._root_ca: dict[str, dict[str, Any]] = {}

    async def get(self, kube: client.Kube, namespace: str, name: str) -> dict[str, Any] | None:
        """Return the ConfigMap, or None if it does not exist."""
        if name == self.ROOT_CA and namespace in self._root_ca:
            return self._root_ca[namespace]
        found = await _read(kube, "configmaps", namespace, name)
        if name == self.ROOT_CA and found is not None:
            self._root_ca[namespace] = found
        return found


async def _read(kube: client.Kube, kind: str, namespace: str, name: str) -> dict[str, Any] | None:
    path = client.core_path(kind, namespace, name)
    try:
        return await _as_node(lambda: kube.get(path))
    except errors.NotFound:
        return None


async def _as_node(ask: Callable[[], Awaitable[dict[str, Any]]]) -> dict[str, Any]:
    """Return the answer to a request that the node authorizer may not allow yet."""
    for pause in SECONDS_TRIES:
        with contextlib.suppress(errors.Rejected):
            return await ask()
        await asyncio.sleep(pause)
    return await ask()


async def token(kube: client.Kube, pod: v1.Pod, key: TokenKey) -> IssuedToken:
    """Request a token of the pod's service account, bound to the pod.

    Raises:
        errors.ApiUnavailable: The API server does not respond.
        errors.Rejected, errors.NotFound: The pod or its service account is gone.
    """
    audience, seconds = key
    reference = {"apiVersion": "v1", "kind": "Pod", "name": pod.metadata.name, "uid": pod.metadata.uid}
    spec = {"audiences": [audience] if audience else [], "expirationSeconds": seconds, "boundObjectRef": reference}
    path = client.core_path("serviceaccounts", pod.metadata.namespace, pod.spec.service_account_name) + "/token"
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
    status = (await _as_node(lambda: kube.create(path, body)))["status"]
    return IssuedToken(str(status["token"]), _renew_at(status, now=time.time(), seconds=seconds))


def _renew_at(status: dict[str, Any], *, now: float, seconds: float) -> float:
    """Return when the kubelet would renew the token; the API server may have shortened the requested lifetime."""
    if text := status.get("expirationTimestamp"):
        seconds = datetime.fromisoformat(text).timestamp() - now
    wait = min(seconds * RENEWED_AT_PART, RENEWED_AT_SECONDS)
    return now + wait * (1 - JITTER_PART * random.random())  # noqa: S311 - spreads requests, protects nothing
