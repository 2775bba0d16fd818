"""etcd: one member, TLS with client certificates, on loopback, with its data under the state directory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpk.controlplane import component
from hpk.controlplane import layout as layouts
from hpk.kube import readiness

if TYPE_CHECKING:
    from hpk.controlplane.layout import Layout

NAME = "etcd"
SERVER = "etcd-server"
CLIENT = "etcd-client"
"""Names of the certificates in ``issued/``."""

MEMORY_MIB = 192
MOST_QUOTA_BYTES = 2 << 30
"""etcd's own default: enough for some 100,000 pods. The file is mapped into memory, and copied if it is node-local."""
LEAST_QUOTA_BYTES = 256 << 20


def quota_bytes(free_bytes: int, *, held_bytes: int = 0) -> int:
    """Return the maximum size of the database.

    A third of the free space: defragmenting and copying need as much again, and the log some more. It is never less
    than a running cluster needs, so that a restart does not make it read-only.
    """
    least = max(LEAST_QUOTA_BYTES, held_bytes + held_bytes // 4)
    return min(MOST_QUOTA_BYTES, max(least, (free_bytes + held_bytes) // 3))


def component_of(layout: Layout) -> component.Component:
    """Return etcd as a component."""
    # Port 0: a single member never talks to a peer, but must listen for one.
    peer = f"https://{layouts.LOOPBACK}:0"
    flags = {
        "name": "hpk",
        "data-dir": layout.etcd_data,
        "listen-client-urls": layout.etcd_url,
        "advertise-client-urls": layout.etcd_url,
        "listen-peer-urls": peer,
        "initial-advertise-peer-urls": peer,
        "initial-cluster": f"hpk={peer}",
        "cert-file": layout.certificate(SERVER),
        "key-file": layout.key(SERVER),
        "trusted-ca-file": layout.authority_certificate("etcd"),
        "client-cert-auth": "true",
        "peer-cert-file": layout.certificate(SERVER),
        "peer-key-file": layout.key(SERVER),
        "peer-trusted-ca-file": layout.authority_certificate("etcd"),
        "peer-client-cert-auth": "true",
        "tls-min-version": "TLS1.3",
        # The REST gateway would be another entry point, and a client of itself.
        "enable-grpc-gateway": "false",
        # A single member waits for an election timeout at each start, one to two times this long.
        "heartbeat-interval": "100",
        "election-timeout": "500",
        # The API server compacts every five minutes; this covers a long absence of it.
        "auto-compaction-mode": "periodic",
        "auto-compaction-retention": "1h",
        "quota-backend-bytes": layout.etcd_quota_bytes,
        # Write-ahead logs are preallocated at 64 MB each, and homes have quotas.
        "max-wals": "2",
        # Entries are kept in memory for slow followers, of which there are none.
        "snapshot-count": "5000",
        "snapshot-catchup-entries": "100",
        # Shared file systems are slow at times; do not log each case.
        "warning-apply-duration": "1s",
        "log-level": "warn",
        "log-outputs": "stderr",
    }
    return component.Component(
        name=NAME,
        argv=(layout.binary(NAME), *(f"--{name}={value}" for name, value in flags.items())),
        # One thread of Go code: more only wake each other, a fifth of its CPU use at rest.
        env=layouts.environment(memory_mib=MEMORY_MIB, processors=1),
        log=layout.log(NAME),
        probe=readiness.Https(
            f"{layout.etcd_url}/readyz",
            layout.authority_certificate("etcd"),
            layout.certificate(CLIENT),
            layout.key(CLIENT),
        ),
    )
