"""Who may speak to the API server: one client certificate and one kubeconfig (0600) each.

| identity           | user                             | groups           | may                                   |
|--------------------|----------------------------------|------------------|---------------------------------------|
| admin              | hpk:admin                        | hpk:admins       | everything (a binding, so revocable)  |
| kubelet            | system:node:<node>               | system:nodes     | what the Node authorizer lets a node  |
| binder             | hpk:binder                       |                  | bind pods (:mod:`.bootstrap`)         |
| controller-manager | system:kube-controller-manager   |                  | Kubernetes' own role                  |
| bootstrap          | hpk:bootstrap                    | system:masters   | everything, for an hour               |
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import TYPE_CHECKING

import yaml

from hpk import jobdir, pki
from hpk import kubeconfig as kubeconfigs
from hpk.controlplane import apiserver, controller_manager, etcd
from hpk.controlplane import layout as layouts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hpk.controlplane.layout import Layout

ADMINS = "hpk:admins"
BINDER = "hpk:binder"
_AN_HOUR = 1 / 24


@dataclass(frozen=True, kw_only=True)
class Identity:
    """A client of the API server."""

    name: str
    """The name of its kubeconfig file."""
    user: str
    groups: tuple[str, ...] = ()
    days: float = pki.CERTIFICATE_DAYS


def identities(node_name: str) -> tuple[Identity, ...]:
    """Return all identities that get a kubeconfig."""
    return (
        Identity(name="admin", user="hpk:admin", groups=(ADMINS,)),
        Identity(name="kubelet", user=f"system:node:{node_name}", groups=("system:nodes",)),
        Identity(name="binder", user=BINDER),
        Identity(name="controller-manager", user=controller_manager.USER),
        Identity(name="bootstrap", user="hpk:bootstrap", groups=("system:masters",), days=_AN_HOUR),
    )


def kubeconfig(*, server: str, ca_pem: bytes, certificate: pki.Certificate) -> bytes:
    """Return a kubeconfig for one user of one cluster, with everything embedded."""
    user = {"client-certificate-data": certificate.certificate_pem, "client-key-data": certificate.key_pem}
    name = kubeconfigs.NAME
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": {"server": server, "certificate-authority-data": _base64(ca_pem)}}],
        "users": [{"name": name, "user": {key: _base64(value) for key, value in user.items()}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name, "namespace": "default"}}],
        "current-context": name,
    }
    return yaml.safe_dump(document, sort_keys=False).encode()


def open_authorities(layout: Layout) -> dict[str, pki.Authority]:
    """Open the four certificate authorities; the first start creates them.

    Raises:
        errors.Fatal: One is damaged or about to expire.
    """
    pki.signing_key(layout.service_account)
    return {name: pki.Authority.open(layout.authority(name), name) for name in layouts.AUTHORITIES}


def issue(layout: Layout, authorities: Mapping[str, pki.Authority]) -> None:
    """Write all certificates and kubeconfigs for this start, replacing the last one's."""
    issued = _servers(layout, authorities) | _clients(authorities)
    for name, certificate in issued.items():
        certificate.write(layout.issued, name)
    cluster = authorities["kubernetes"]
    for identity in identities(layout.settings.node_name):
        server = layout.url if identity.name == "admin" else layout.local_url
        certificate = cluster.issue(identity.user, organizations=identity.groups, is_client=True, days=identity.days)
        document = kubeconfig(server=server, ca_pem=cluster.certificate_pem, certificate=certificate)
        jobdir.write_bytes(str(layout.kubeconfig(identity.name)), document, is_durable=False)


def kubelet_server(layout: Layout, cluster: pki.Authority) -> pki.Certificate:
    """Issue the certificate of the kubelet's HTTPS endpoint, which the API server verifies."""
    return cluster.issue(
        f"system:node:{layout.settings.node_name}",
        organizations=("system:nodes",),
        dns_names=(layout.settings.node_name, *layout.host_names, "localhost"),
        addresses=(layout.address, layouts.LOOPBACK),
        is_server=True,
    )


def _servers(layout: Layout, authorities: Mapping[str, pki.Authority]) -> dict[str, pki.Certificate]:
    kubernetes = ("kubernetes", "kubernetes.default", "kubernetes.default.svc")
    return {
        apiserver.SERVER: authorities["kubernetes"].issue(
            "kube-apiserver",
            dns_names=(
                *kubernetes,
                f"{kubernetes[-1]}.{layout.settings.cluster_domain}",
                *layout.host_names,
                "localhost",
            ),
            addresses=(layout.address, layouts.LOOPBACK, layout.first_service_address),
            is_server=True,
        ),
        # Also a client certificate: etcd's peer listener requires one that is valid for both.
        etcd.SERVER: authorities["etcd"].issue(
            "etcd", dns_names=("localhost",), addresses=(layouts.LOOPBACK,), is_server=True, is_client=True
        ),
    }


def _clients(authorities: Mapping[str, pki.Authority]) -> dict[str, pki.Certificate]:
    cluster = authorities["kubernetes"]
    return {
        etcd.CLIENT: authorities["etcd"].issue("hpk:etcd-client", is_client=True),
        apiserver.KUBELET_CLIENT: cluster.issue(apiserver.KUBELET_CLIENT_USER, is_client=True),
        apiserver.PROBE: cluster.issue(apiserver.PROBE_USER, is_client=True),
        apiserver.FRONT_PROXY_CLIENT: authorities["front-proxy"].issue(apiserver.FRONT_PROXY_CLIENT, is_client=True),
    }


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
