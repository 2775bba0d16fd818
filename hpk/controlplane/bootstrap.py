"""The objects of a new cluster: RBAC rules for our own identities. Idempotent (server-side apply)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from hpk import errors
from hpk.controlplane import apiserver, identities

if TYPE_CHECKING:
    from hpk.kube import client

MANAGER = "hpk-bootstrap"
_RBAC = "/apis/rbac.authorization.k8s.io/v1"
_GROUP = "rbac.authorization.k8s.io"
_PAUSE_SECONDS = 0.1


def objects() -> list[tuple[str, dict[str, Any]]]:
    """Return the API path and content of each object to apply."""
    return [
        _binding("hpk:admins", role="cluster-admin", kind="Group", name=identities.ADMINS),
        # exec, logs and port-forward: the API server is a client of the kubelet.
        _binding(
            "hpk:apiserver-kubelet-client",
            role="system:kubelet-api-admin",
            kind="User",
            name=apiserver.KUBELET_CLIENT_USER,
        ),
        _role(
            "hpk:binder",
            [
                {"apiGroups": [""], "resources": ["pods", "nodes", "namespaces"], "verbs": ["get", "list", "watch"]},
                {"apiGroups": [""], "resources": ["pods/binding", "bindings"], "verbs": ["create"]},
                {"apiGroups": [""], "resources": ["pods/status"], "verbs": ["patch"]},
                {"apiGroups": ["", "events.k8s.io"], "resources": ["events"], "verbs": ["create", "list", "patch"]},
            ],
        ),
        _binding("hpk:binder", role="hpk:binder", kind="User", name=identities.BINDER),
    ]


async def apply(kube: client.Kube) -> None:
    """Apply the objects.

    Raises:
        errors.HpkError: The API server rejected one or does not answer.
    """
    for path, body in objects():
        await kube.apply(path, body, manager=MANAGER)


async def wait_for_service_account(kube: client.Kube) -> None:
    """Wait until the namespace ``default`` has its service account and can take pods; there is no timeout."""
    while True:
        try:
            await kube.get("/api/v1/namespaces/default/serviceaccounts/default")
            await kube.get("/api/v1/namespaces/default/configmaps/kube-root-ca.crt")
        except (errors.NotFound, errors.Retryable):
            await asyncio.sleep(_PAUSE_SECONDS)
        else:
            return


def _role(name: str, rules: list[dict[str, Any]]) -> tuple[str, dict[str, Any]]:
    body = {"apiVersion": f"{_GROUP}/v1", "kind": "ClusterRole", "metadata": {"name": name}, "rules": rules}
    return f"{_RBAC}/clusterroles/{name}", body


def _binding(binding: str, *, role: str, kind: str, name: str) -> tuple[str, dict[str, Any]]:
    body = {
        "apiVersion": f"{_GROUP}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": binding},
        "roleRef": {"apiGroup": _GROUP, "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": _GROUP, "kind": kind, "name": name}],
    }
    return f"{_RBAC}/clusterrolebindings/{binding}", body
