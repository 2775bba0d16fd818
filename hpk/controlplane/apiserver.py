"""kube-apiserver: TLS everywhere, no anonymous access, Node and RBAC authorizers, little memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpk.controlplane import component, etcd
from hpk.controlplane import layout as layouts
from hpk.kube import readiness

if TYPE_CHECKING:
    from hpk.controlplane.layout import Layout

NAME = "kube-apiserver"
SERVER = "apiserver"
KUBELET_CLIENT = "apiserver-kubelet-client"
FRONT_PROXY_CLIENT = "front-proxy-client"
PROBE = "probe"
"""Names of the certificates in ``issued/``."""

KUBELET_CLIENT_USER = "hpk:apiserver-kubelet-client"
PROBE_USER = "hpk:probe"

# The other default admission plugins have no work here: there are no storage classes, no CSI and no cloud.
# NodeRestriction limits the kubelet to its own node and pods.
ADMISSION = ("NodeRestriction",)


def component_of(layout: Layout) -> component.Component:
    """Return the API server as a component."""
    flags = _doors(layout) | _storage(layout) | _identities(layout) | _cluster(layout)
    return component.Component(
        name=NAME,
        argv=(layout.binary(NAME), *(f"--{name}={value}" for name, value in flags.items())),
        env=layouts.environment(memory_mib=layout.settings.control_plane_memory, processors=layout.processors),
        log=layout.log(NAME),
        needs=(etcd.NAME,),
        probe=readiness.Https(
            f"{layout.local_url}/readyz",
            layout.authority_certificate("kubernetes"),
            layout.certificate(PROBE),
            layout.key(PROBE),
        ),
        stop_seconds=15.0,
    )


def _doors(layout: Layout) -> dict[str, object]:
    return {
        "bind-address": layouts.LOOPBACK if layout.is_local else "0.0.0.0",  # noqa: S104 - the cluster's door
        "advertise-address": layout.address,
        "secure-port": layout.api_port,
        "tls-cert-file": layout.certificate(SERVER),
        "tls-private-key-file": layout.key(SERVER),
        "tls-min-version": "VersionTLS12",
        # The endpoints of the service "kubernetes" must not be loopback, so a local trial has none.
        "endpoint-reconciler-type": "none" if layout.is_local else "lease",
        "profiling": "false",
    }


def _storage(layout: Layout) -> dict[str, object]:
    return {
        "etcd-servers": layout.etcd_url,
        "etcd-cafile": layout.authority_certificate("etcd"),
        "etcd-certfile": layout.certificate(etcd.CLIENT),
        "etcd-keyfile": layout.key(etcd.CLIENT),
        # Metrics for dashboards that do not exist here.
        "etcd-count-metric-poll-period": "0",
        "etcd-db-metric-poll-interval": "0",
    }


def _identities(layout: Layout) -> dict[str, object]:
    return {
        "anonymous-auth": "false",
        "authorization-mode": "Node,RBAC",
        "enable-admission-plugins": ",".join(ADMISSION),
        # Contains the client certificate for webhooks.
        "admission-control-config-file": layout.admission,
        "client-ca-file": layout.authority_certificate("kubernetes"),
        "service-account-issuer": layout.service_account_issuer,
        "service-account-signing-key-file": layout.service_account / "key",
        "service-account-key-file": layout.service_account / "pub",
        "kubelet-client-certificate": layout.certificate(KUBELET_CLIENT),
        "kubelet-client-key": layout.key(KUBELET_CLIENT),
        "kubelet-certificate-authority": layout.authority_certificate("kubernetes"),
        "kubelet-preferred-address-types": "InternalIP",
        "requestheader-client-ca-file": layout.authority_certificate("front-proxy"),
        "requestheader-allowed-names": FRONT_PROXY_CLIENT,
        "requestheader-username-headers": "X-Remote-User",
        "requestheader-uid-headers": "X-Remote-Uid",
        "requestheader-group-headers": "X-Remote-Group",
        "requestheader-extra-headers-prefix": "X-Remote-Extra-",
        "proxy-client-cert-file": layout.certificate(FRONT_PROXY_CLIENT),
        "proxy-client-key-file": layout.key(FRONT_PROXY_CLIENT),
    }


def _cluster(layout: Layout) -> dict[str, object]:
    return {
        "service-cluster-ip-range": layout.settings.service_cidr,
        "allow-privileged": "true",
        # This host has no ClusterIP routes, so aggregated APIs are reached at their pods.
        "enable-aggregator-routing": "true",
    }
