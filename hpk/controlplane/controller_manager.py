"""kube-controller-manager: all the usual controllers, each with its own service account."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpk.controlplane import apiserver, component
from hpk.controlplane import layout as layouts

if TYPE_CHECKING:
    from hpk.controlplane.layout import Layout

NAME = "kube-controller-manager"
USER = "system:kube-controller-manager"

MEMORY_MIB = 192

# Off: no machine here attaches disks or gets a range of pod addresses, and no device is tainted. A NotReady node must
# not evict pods either: their jobs keep running while the kubelet or slurmctld is away, and are adopted later.
OFF = (
    "taint-eviction-controller",
    "persistentvolume-attach-detach-controller",
    "node-ipam-controller",
    "device-taint-eviction-controller",
)


def component_of(layout: Layout) -> component.Component:
    """Return the controller manager as a component; it starts beside the API server and waits for it."""
    flags = {
        "kubeconfig": layout.kubeconfig("controller-manager"),
        # Nobody connects to it: it needs no port, certificate or health check.
        "secure-port": "0",
        # A single instance needs no election, which would delay the start by eight seconds.
        "leader-elect": "false",
        "controllers": ",".join(("*", *(f"-{name}" for name in OFF))),
        "use-service-account-credentials": "true",
        "service-account-private-key-file": layout.service_account / "key",
        "root-ca-file": layout.authority_certificate("kubernetes"),
        "cluster-signing-cert-file": layout.authority_certificate("kubernetes"),
        "cluster-signing-key-file": layout.authority_key("kubernetes"),
        "service-cluster-ip-range": layout.settings.service_cidr,
        # A Job of a hundred pods should not take five seconds to create them (default 20 a second).
        "kube-api-qps": "200",
        "kube-api-burst": "400",
        "profiling": "false",
    }
    return component.Component(
        name=NAME,
        argv=(layout.binary(NAME), *(f"--{name}={value}" for name, value in flags.items())),
        # One thread of Go code: more only wake each other, a third of its CPU use at rest.
        env=layouts.environment(memory_mib=MEMORY_MIB, processors=1),
        log=layout.log(NAME),
        needs=(apiserver.NAME,),
    )
