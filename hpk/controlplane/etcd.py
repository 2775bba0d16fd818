"""etcd: one member, TLS with client certificates, this host only, data under the state directory."""

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
"""etcd's own default: room for some 100,000 pods; the file is mapped into memory, and copied where it is node-local."""
LEAST_QUOTA_BYTES = 256 << 20


def quota_bytes(free_bytes: int, *, held_bytes: int = 0) -> int:
    """Return how large the database may become.

    A third of the room: defragmenting and copying need as much again, and the log some more.  Never less than a cluster
    that works needs: one that took changes before it was started again takes them afterwards.
    """
    least = max(LEAST_QUOTA_BYTES, held_bytes + held_bytes // 4)
    return min(MOST_QUOTA_BYTES, max(least, (free_bytes + held_bytes) // 3))


def component_of(layout: Layout) -> component.Component:
    """Etcd as a child."""
    # Port 0: a lone member never talks to a peer, but insists on listening for one.
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
        # The REST gateway would be a second door, and a client of itself.
        "enable-grpc-gateway": "false",
        # A lone member waits out an election timeout at each start, one to two times this long.
        "heartbeat-interval": "100",
        "election-timeout": "500",
        # The API server compacts every five minutes; this is for the time after a long absence of it.
        "auto-compaction-mode": "periodic",
        "auto-compaction-retention": "1h",
        "quota-backend-bytes": layout.etcd_quota_bytes,
        # Write-ahead logs are 64 MB each, preallocated, and homes have quotas.
        "max-wals": "2",
        # Entries are kept in memory for slow followers; there are none.
        "snapshot-count": "5000",
        "snapshot-catchup-entries": "100",
        # Shared file systems are slow at times: not worth a line each.
        "warning-apply-duration": "1s",
        "log-level": "warn",
        "log-outputs": "stderr",
    }
    return component.Component(
        name=NAME,
        argv=(layout.binary(NAME), *(f"--{name}={value}" for name, value in flags.items())),
        # One thread of Go code: more only wake each other up, a fifth of its work at rest.
        env=layouts.environment(memory_mib=MEMORY_MIB, processors=1),
        log=layout.log(NAME),
        probe=readiness.Https(
            f"{layout.etcd_url}/readyz",
            layout.authority_certificate("etcd"),
            layout.certificate(CLIENT),
            layout.key(CLIENT),
        ),
    )
