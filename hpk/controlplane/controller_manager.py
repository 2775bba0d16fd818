"""kube-controller-manager: all controllers that a user expects, each with its own service account."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpk.controlplane import apiserver, component
from hpk.controlplane import layout as layouts

if TYPE_CHECKING:
    from hpk.controlplane.layout import Layout

NAME = "kube-controller-manager"
USER = "system:kube-controller-manager"

MEMORY_MIB = 192

# Off: no machine of ours attaches disks or is given a range of pod addresses, and no device is tainted.  Nor may
# a node that is not ready evict pods: their jobs run on while the kubelet or slurmctld is away, and are adopted.
OFF = (
    "taint-eviction-controller",
    "persistentvolume-attach-detach-controller",
    "node-ipam-controller",
    "device-taint-eviction-controller",
)


def component_of(layout: Layout) -> component.Component:
    """The controller manager as a child; it waits for the API server by itself and starts beside it."""
    flags = {
        "kubeconfig": layout.kubeconfig("controller-manager"),
        # Nobody asks it anything: no port, no certificate, no health check but its work.
        "secure-port": "0",
        # With one instance an election only delays the start, by eight seconds.
        "leader-elect": "false",
        "controllers": ",".join(("*", *(f"-{name}" for name in OFF))),
        "use-service-account-credentials": "true",
        "service-account-private-key-file": layout.service_account / "key",
        "root-ca-file": layout.authority_certificate("kubernetes"),
        "cluster-signing-cert-file": layout.authority_certificate("kubernetes"),
        "cluster-signing-key-file": layout.authority_key("kubernetes"),
        "service-cluster-ip-range": layout.service_cidr,
        # A Job of a hundred pods should not take five seconds to create them (default 20 a second).
        "kube-api-qps": "200",
        "kube-api-burst": "400",
        "profiling": "false",
    }
    return component.Component(
        name=NAME,
        argv=(layout.binary(NAME), *(f"--{name}={value}" for name, value in flags.items())),
        # One thread of Go code: more only wake each other up, a third of its work at rest.
        env=layouts.environment(memory_mib=MEMORY_MIB, processors=1),
        log=layout.log(NAME),
        needs=(apiserver.NAME,),
    )
