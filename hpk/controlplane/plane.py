"""The control plane as one service: lock, ports, identities, components, initial objects."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import functools
import os
import shutil
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from hpk import errors, jobdir
from hpk.aio import ports, service
from hpk.controlplane import (
    address,
    admission,
    apiserver,
    bootstrap,
    controller_manager,
    datadir,
    etcd,
    identities,
    lock,
    mirror,
    placement,
    renewal,
    snapshot,
    supervisor,
    troubles,
    upkeep,
    version,
)
from hpk.controlplane import layout as layouts
from hpk.slurm import client as slurm_client
from hpk.slurm import runner

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping

    from hpk import config, pki

API_PORT = 6443
KUBELET_PORT = 10250
"""Preferred, as usual; if another user has it on this host, another port is taken."""
BOOTSTRAP_SECONDS = 120.0

logger = structlog.get_logger(__name__)


@dataclass(frozen=True, kw_only=True)
class ControlPlane:
    """A control plane prepared by :func:`prepared`.

    Attributes:
        serving: Set once the API server is ready and our identities have their rights: the node can register.
        ready: Set once the namespace ``default`` can take pods as well.
        book: Ports of this host, held and recorded by name; the link's server takes its own from here.
        kubelet_port: Held for the kubelet's HTTPS endpoint.
        troubles: Problems that it cannot repair by itself.
        certificates_end: When the first certificate issued at this start expires.
        link: The authority of the agents' link.
    """

    layout: layouts.Layout
    book: ports.Book
    kubelet_port: ports.ReservedPort
    link: pki.Authority
    kubelet_certificate: pki.Certificate
    ca_pem: bytes
    certificates_end: dt.datetime
    _lock: lock.Lock
    _supervisor: supervisor.Supervisor
    _mirror: mirror.Mirror | None = None
    troubles: troubles.Troubles = field(default_factory=troubles.Troubles)
    serving: asyncio.Event = field(default_factory=asyncio.Event)
    ready: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def url(self) -> str:
        """The API server's URL for all who can reach this host."""
        return self.layout.url

    @property
    def api_address(self) -> str:
        """KUBERNETES_SERVICE_HOST of pods."""
        return self.layout.address

    @property
    def api_port(self) -> int:
        """KUBERNETES_SERVICE_PORT of pods."""
        return self.layout.api_port

    @property
    def admin_kubeconfig(self) -> bytes:
        """The user's kubeconfig (context ``hpk``), also valid on other hosts."""
        return self.layout.kubeconfig("admin").read_bytes()

    @property
    def kubelet_kubeconfig(self) -> Path:
        """The kubeconfig of ``system:node:<node>``."""
        return self.layout.kubeconfig("kubelet")

    @property
    def binder_kubeconfig(self) -> Path:
        """The kubeconfig of ``hpk:binder``."""
        return self.layout.kubeconfig("binder")

    async def run(self) -> None:
        """Run until cancelled, then stop all components in order.

        Raises:
            ExceptionGroup: A component was given up; contains an errors.Retryable with its last lines of output.
        """
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._supervisor.run(), name="components")
                group.create_task(self._lock.keep(), name="hold on the state directory")
                group.create_task(self._bring_up(), name="bootstrap")
                group.create_task(renewal.until(self.certificates_end), name="renewal of certificates")
                ready = self._supervisor.ready(etcd.NAME)
                keep = functools.partial(upkeep.run, self.layout, ready, self.troubles)
                group.create_task(service.kept("upkeep of etcd", keep), name="upkeep of etcd")
                if self._mirror:
                    group.create_task(service.kept("copy of etcd's data", self._mirror.run), name="copy of etcd")
        finally:
            if self._mirror:
                await asyncio.to_thread(_finish, self._mirror)

    async def _bring_up(self) -> None:
        started_at = time.monotonic()
        await self._supervisor.ready(etcd.NAME).wait()
        # Import this while the API server starts: it takes 0.3 s, and etcd need not wait for it.
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
            raise errors.Retryable(
                f"Cannot bring up the cluster: no default service account after {BOOTSTRAP_SECONDS:.0f} s; see {log}"
            ) from error
        finally:
            path.unlink(missing_ok=True)  # it has all rights, so it is removed as soon as it has done its work
        self.ready.set()
        logger.info("The control plane is ready", seconds=round(time.monotonic() - started_at, 2))


@contextlib.asynccontextmanager
async def prepared(
    settings: config.Settings, *, binaries: Mapping[str, str] | None = None
) -> AsyncIterator[ControlPlane]:
    """Take the state directory, ports and identities; release them at the end of the block.

    The programs are those on PATH, unless `binaries` has their paths by name.

    Raises:
        errors.Fatal: The directory is in use, a program is missing, no address or port is available, or an authority is
            damaged.
        errors.Retryable: The directory cannot be written.
    """
    found = binaries or layouts.find_binaries()
    ours = address.find(wanted=settings.address)
    root = Path(settings.directory.control_plane)
    async with contextlib.AsyncExitStack() as stack:
        try:
            jobdir.make_directory(str(root))
            held = await stack.enter_async_context(_locked(settings, root))
            version.mark(root)
            book = stack.enter_context(contextlib.closing(ports.Book(root / "ports.json")))
            node_data = stack.enter_context(_etcd_data(settings, root))
            # In a thread, so that the heartbeat goes on: etcd's data may be large.
            prepared = await asyncio.to_thread(
                _prepare, settings, ours, book=book, held=held, binaries=found, node_data=node_data
            )
        except OSError as error:
            raise errors.Retryable(f"Cannot write to {root}: {error.strerror}{placement.advice(error)}") from error
        yield prepared


def _locked(settings: config.Settings, root: Path) -> contextlib.AbstractAsyncContextManager[lock.Lock]:
    """Return the lock of the state directory, for this job."""
    ask = slurm_client.Slurm(runner.GatewayClient(settings.gateway)).jobs if settings.gateway else None
    started_at = os.environ.get("SLURM_JOB_START_TIME", "")
    return lock.locked(
        root,
        job_id=os.environ.get("SLURM_JOB_ID", ""),
        job_started_at=float(started_at) if started_at.isdigit() else 0.0,
        cluster=os.environ.get("SLURM_CLUSTER_NAME", ""),
        ask=ask,
    )


@contextlib.contextmanager
def _etcd_data(settings: config.Settings, root: Path) -> Iterator[Path | None]:
    """Yield a temporary directory of this node for etcd's data, or None if they are in the state directory.

    Raises:
        errors.Retryable: Neither directory can be written.
    """
    place, why = placement.choose(settings.etcd, placement.measure(root), directory=root)
    logger.info("Chose the place of etcd's data", place=place, why=why)
    if place == "shared":
        yield None
        return
    try:
        directory = Path(tempfile.mkdtemp(prefix="hpk-etcd."))
    except OSError as error:
        raise errors.Retryable(f"Cannot make a directory under {tempfile.gettempdir()}: {error.strerror}") from error
    try:
        yield directory / "data"
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _settle(copy: datadir.DataDirectory, *, is_for_node: bool) -> Mapping[str, int]:
    """Recover etcd's data in the state directory, if they are (or were) a copy."""
    mark = copy.root / "copy"
    if not is_for_node and not mark.exists():
        return {}
    try:
        ends = datadir.settle(copy)
        if is_for_node:
            mark.touch(mode=0o600)
        else:
            mark.unlink()
    except OSError as error:
        raise errors.Retryable(
            f"Cannot use etcd's data in {copy.root}: {error.strerror}{placement.advice(error)}"
        ) from error
    return ends


def _finish(kept: mirror.Mirror) -> None:
    try:
        kept.finish()
    except OSError as error:
        logger.error(  # noqa: TRY400 - the reason is the error's own text
            "Cannot copy the last of etcd's data to the state directory; it is lost",
            error=f"{error.strerror}{placement.advice(error)}",
            behind_seconds=round(kept.behind_seconds, 1),
        )


def _quota_bytes(settings: config.Settings, *, node_data: Path | None) -> int:
    """Return the maximum size of etcd's database at its present or future place."""
    root = Path(settings.directory.control_plane)
    try:
        held = datadir.DataDirectory(root / "etcd").database.stat().st_size
    except FileNotFoundError:
        held = 0
    return etcd.quota_bytes(shutil.disk_usage(node_data.parent if node_data else root).free, held_bytes=held)


def _prepare(
    settings: config.Settings,
    ours: str,
    *,
    book: ports.Book,
    held: lock.Lock,
    binaries: Mapping[str, str],
    node_data: Path | None,
) -> ControlPlane:
    everywhere = layouts.LOOPBACK if ours == layouts.LOOPBACK else "0.0.0.0"  # noqa: S104 - the cluster's doors
    kubelet_port = book.hold("kubelet", host=everywhere, preferred=[KUBELET_PORT])
    where = layouts.Layout(
        settings=settings,
        address=ours,
        host_names=address.host_names(),
        etcd_port=book.hold("etcd", host=layouts.LOOPBACK).port,
        api_port=book.hold(apiserver.NAME, host=everywhere, preferred=[API_PORT]).port,
        kubelet_port=kubelet_port.port,
        binaries=binaries,
        etcd_node_data=node_data,
        etcd_quota_bytes=_quota_bytes(settings, node_data=node_data),
    )
    where.make_directories()
    found = troubles.Troubles()
    copy = datadir.DataDirectory(where.etcd_copy)
    ends = _settle(copy, is_for_node=node_data is not None)
    kept = None
    if node_data is not None:
        save = functools.partial(snapshot.save, where)
        tell = functools.partial(found.tell, "copy of etcd")
        kept = mirror.Mirror(datadir.DataDirectory(node_data), copy, save=save, is_ours=held.is_ours, tell=tell)
        kept.begin(ends)
    authorities = identities.open_authorities(where)
    identities.issue(where, authorities)
    admission.write(where)
    now = dt.datetime.now(dt.UTC)
    found.tell("authorities", renewal.trouble(authorities, now=now))
    components = [module.component_of(where) for module in (etcd, apiserver, controller_manager)]
    return ControlPlane(
        layout=where,
        book=book,
        kubelet_port=kubelet_port,
        link=authorities["link"],
        kubelet_certificate=identities.kubelet_server(where, authorities["kubernetes"]),
        ca_pem=authorities["kubernetes"].certificate_pem,
        troubles=found,
        certificates_end=renewal.certificates_end(authorities.values(), now=now),
        _lock=held,
        _supervisor=supervisor.Supervisor(components),
        _mirror=kept,
    )
