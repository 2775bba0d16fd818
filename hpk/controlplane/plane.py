"""The control plane as one service: lock, ports, identities, components, first objects."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from hpk import errors, jobdir
from hpk.aio import ports
from hpk.controlplane import (
    address,
    admission,
    apiserver,
    bootstrap,
    controller_manager,
    etcd,
    identities,
    lock,
    supervisor,
)
from hpk.controlplane import layout as layouts

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from hpk import config, pki

API_PORT = 6443
KUBELET_PORT = 10250
"""Preferred, as everywhere; on a host that many users share another one is taken."""
BOOTSTRAP_SECONDS = 120.0

logger = structlog.get_logger(__name__)


@dataclass(frozen=True, kw_only=True)
class ControlPlane:
    """A prepared control plane; :func:`prepared` makes it, :meth:`run` runs it.

    Attributes:
        serving: Set once the API server is ready and our identities have their rights: the node can register.
        ready: Set once the namespace ``default`` can take pods as well.
        book: Ports of this host, held and recorded by name; the link's server takes its own from here.
        kubelet_port: Held for the kubelet's HTTPS endpoint.
        link: The authority of the agents' link.
    """

    layout: layouts.Layout
    book: ports.Book
    kubelet_port: ports.Held
    link: pki.Authority
    kubelet_certificate: pki.Certificate
    ca_pem: bytes
    _lock: lock.Lock
    _supervisor: supervisor.Supervisor
    serving: asyncio.Event = field(default_factory=asyncio.Event)
    ready: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def url(self) -> str:
        """The API server for everybody who can reach this host."""
        return self.layout.url

    @property
    def api_address(self) -> str:
        """For pods: KUBERNETES_SERVICE_HOST."""
        return self.layout.address

    @property
    def api_port(self) -> int:
        """For pods: KUBERNETES_SERVICE_PORT."""
        return self.layout.api_port

    @property
    def admin_kubeconfig(self) -> bytes:
        """The user's kubeconfig (context ``hpk``), for other hosts too."""
        return self.layout.kubeconfig("admin").read_bytes()

    @property
    def kubelet_kubeconfig(self) -> Path:
        """As ``system:node:<node>``."""
        return self.layout.kubeconfig("kubelet")

    @property
    def binder_kubeconfig(self) -> Path:
        """As ``hpk:binder``."""
        return self.layout.kubeconfig("binder")

    async def run(self) -> None:
        """Run until cancelled, then stop everything in order; nothing is left running.

        Raises:
            ExceptionGroup: With an errors.Fatal that says which component was given up, and its last lines.
        """
        async with asyncio.TaskGroup() as group:
            group.create_task(self._supervisor.run(), name="components")
            group.create_task(self._lock.keep(), name="heartbeat of the state directory")
            group.create_task(self._bring_up(), name="bootstrap")

    async def _bring_up(self) -> None:
        started_at = time.monotonic()
        await self._supervisor.ready(etcd.NAME).wait()
        # While the API server starts: the import takes 0.3 s, which etcd need not wait for.
        from hpk.kube import client  # noqa: PLC0415

        await self._supervisor.ready(apiserver.NAME).wait()
        path = self.layout.kubeconfig("bootstrap")
        try:
            async with await client.Kube.from_kubeconfig(path) as kube, asyncio.timeout(BOOTSTRAP_SECONDS):
                await bootstrap.apply(kube)
                webhook = admission.webhook(self.layout, ca_pem=self.ca_pem)
                await kube.apply(admission.OBJECT, webhook, manager=bootstrap.MANAGER)
                self.serving.set()
                logger.info("The API server serves", url=self.url, seconds=round(time.monotonic() - started_at, 2))
                await bootstrap.wait_for_service_account(kube)
        except TimeoutError as error:
            log = self.layout.log(controller_manager.NAME)
            raise errors.Fatal(
                f"Cannot bring up the cluster: no default service account after {BOOTSTRAP_SECONDS:.0f} s; see {log}"
            ) from error
        finally:
            path.unlink(missing_ok=True)  # it may do everything, so it goes as soon as it has done its work
        self.ready.set()
        logger.info("The control plane is ready", seconds=round(time.monotonic() - started_at, 2))


@contextlib.asynccontextmanager
async def prepared(
    settings: config.Settings, *, binaries: Mapping[str, str] | None = None
) -> AsyncIterator[ControlPlane]:
    """Take the state directory, ports and identities; give them back at the end of the block.

    Args:
        settings: See :mod:`hpk.config`.
        binaries: Paths of the upstream programs by name; by default those on PATH.

    Raises:
        errors.Fatal: The directory is in use, a program is missing, no address or port is to be had, an
            authority is damaged.
    """
    found = binaries or layouts.find_binaries()
    ours = address.find(wanted=settings.address)
    root = Path(settings.directory.control_plane)
    jobdir.make_directory(str(root))
    async with lock.locked(root, job_id=os.environ.get("SLURM_JOB_ID", "")) as held:
        book = ports.Book(root / "ports.json")
        with contextlib.closing(book):
            yield _prepare(settings, ours, book=book, held=held, binaries=found)


def _prepare(
    settings: config.Settings, ours: str, *, book: ports.Book, held: lock.Lock, binaries: Mapping[str, str]
) -> ControlPlane:
    everywhere = layouts.LOOPBACK if ours == layouts.LOOPBACK else "0.0.0.0"  # noqa: S104 - the cluster's doors
    kubelet_port = book.hold("kubelet", host=everywhere, preferred=[KUBELET_PORT])
    where = layouts.Layout.of(
        settings,
        address=ours,
        host_names=address.host_names(),
        etcd_port=book.hold("etcd", host=layouts.LOOPBACK).port,
        api_port=book.hold(apiserver.NAME, host=everywhere, preferred=[API_PORT]).port,
        kubelet_port=kubelet_port.port,
        binaries=binaries,
    )
    where.make_directories()
    authorities = identities.open_authorities(where)
    identities.issue(where, authorities)
    admission.write(where)
    components = [module.component_of(where) for module in (etcd, apiserver, controller_manager)]
    return ControlPlane(
        layout=where,
        book=book,
        kubelet_port=kubelet_port,
        link=authorities["link"],
        kubelet_certificate=identities.kubelet_server(where, authorities["kubernetes"]),
        ca_pem=authorities["kubernetes"].certificate_pem,
        _lock=held,
        _supervisor=supervisor.Supervisor(components),
    )
