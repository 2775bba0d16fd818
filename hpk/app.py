"""The one composition root: settings → services → one TaskGroup.

Read it as the list of everything that runs in the control plane's job.  The API server starts first and stops
last, so that the kubelet's last word is still heard.
"""

from __future__ import annotations

import asyncio
import functools
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import structlog

from hpk import cluster as slurm_cluster
from hpk import errors, jobdir, kubeconfig
from hpk.aio import clock, descriptors, forever, memory, service, signals
from hpk.controlplane import plane
from hpk.images import collect, store, uses
from hpk.kube import client, informer
from hpk.link import doorbell
from hpk.link import server as link_server
from hpk.network import addresses, sandbox, warm
from hpk.node import auth, configz, host, imagefs, lease, node
from hpk.node import server as node_server
from hpk.pods import (
    agents,
    bind,
    events,
    gate,
    prepare,
    report,
    review,
    services,
    source,
    submit,
    translate,
    watch,
)
from hpk.slurm import client as slurm_client
from hpk.slurm import poller

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from hpk import config, pki, records

LOG = structlog.get_logger(__name__)
Answer = TypeVar("Answer")

PREPARATIONS_AT_ONCE = 64
"""Pods whose plans, secrets included, are in memory: enough that sbatch never waits for one."""
SUBMISSIONS_AT_ONCE = 8
"""Pods submitted side by side: enough to hide latency, few enough for a shared slurmctld."""
AGENT_CERTIFICATE_DAYS = 3650
"""A pod may run for as long as the authority lasts, and its certificate is good for nothing but its own link."""
LINK_SERVER_NAME = "hpk-kubelet"
LISTEN = "0.0.0.0"  # noqa: S104 - the API server, agents and users come from other nodes; all of it is mutual TLS
RETRY_SECONDS = 2.0
MERGE_SECONDS = 60.0
"""Until the user's kubeconfig is tried again: each try may wait ten seconds for its lock."""


async def serve(settings: config.Settings) -> None:
    """Run the control plane and the kubelet until SIGTERM, SIGINT or SIGHUP.

    Raises:
        errors.Fatal: Something that must run cannot; the text says what to do.
    """
    image_changed_at = warm.changed_at(settings.image_file)  # a new one may take its place while this waits
    memory.few_arenas()
    memory.small_tls_buffers()
    with signals.caught() as stop:
        async with plane.prepared(settings) as control_plane, asyncio.TaskGroup() as outer:
            running = outer.create_task(forever.forever("control plane", control_plane.run()), name="control plane")
            await _first(stop.wait(), control_plane.serving.wait())
            if stop.number is None:
                running_kubelet = _run_kubelet(settings, control_plane, image_changed_at=image_changed_at)
                kubelet = outer.create_task(running_kubelet, name="kubelet")
                await stop.wait()
                kubelet.cancel()  # also if it has not come up yet
                await asyncio.wait([kubelet])
            LOG.info("Stopping", signal=str(stop.number))
            running.cancel()


async def _first(*waits: Any) -> None:
    """Return as soon as one of these is done."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


async def _run_kubelet(
    settings: config.Settings, control_plane: plane.ControlPlane, *, image_changed_at: int | None
) -> None:
    """Run the kubelet until cancelled."""
    async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:
        await _start(settings, control_plane, image_changed_at=image_changed_at, stack=stack, group=group)


async def _patiently(ask: Callable[[], Awaitable[Answer]]) -> Answer:
    """Ask until there is an answer: a Slurm that is away for a moment must not end the control plane."""
    while True:
        try:
            return await ask()
        except errors.SlurmUnavailable as error:
            LOG.warning("Cannot start the kubelet yet", error=str(error))
            await asyncio.sleep(RETRY_SECONDS)


async def _start(
    settings: config.Settings,
    control_plane: plane.ControlPlane,
    *,
    image_changed_at: int | None,
    stack: AsyncExitStack,
    group: asyncio.TaskGroup,
) -> None:
    """Make all services of the kubelet, and start them."""
    if settings.gateway is None:
        raise errors.Fatal("Cannot reach Slurm: HPK_GATEWAY is not set; start the program by hpk.sbatch or 'hpk up'")
    gateway = slurm_client.Gateway(settings.gateway)
    kubelet = await stack.enter_async_context(await client.Kube.from_kubeconfig(control_plane.kubelet_kubeconfig))
    # Of its own: nothing that the pods ask for may make the lease wait for a connection.
    lease_kube = await stack.enter_async_context(await client.Kube.from_kubeconfig(control_plane.kubelet_kubeconfig))
    binder_kube = await stack.enter_async_context(await client.Kube.from_kubeconfig(control_plane.binder_kubeconfig))
    site = await _patiently(lambda: gateway.site(apptainer=settings.apptainer))
    cluster = slurm_cluster.Cluster(
        slurm_client.Slurm(gateway),
        _node_facts(settings, control_plane, site),
        slurm_cluster.flags_of(settings),
        has_subordinate_ids=not sandbox.has_one_id(site),
        has_selinux=host.has_selinux(),
        network=sandbox.choose(settings.network, site),
    )
    await cluster.refresh()

    copies = Path(settings.directory.warm)
    warmth = await asyncio.to_thread(warm.provide, copies, image=settings.image_file, changed_at=image_changed_at)
    launcher = sandbox.Launcher(settings, warmth=warmth, kill_wait_seconds=await cluster.kill_wait_seconds())
    made = Kubelet(
        settings, control_plane, kube=kubelet, history=binder_kube, cluster=cluster, site=site, launcher=launcher
    )
    told = events.Recorder(binder_kube, component=bind.SCHEDULER, host=settings.node_name, history=binder_kube)
    await asyncio.gather(told.load(), made.recorder.load())
    binder = bind.Binder(
        binder_kube,
        node=settings.node_name,
        recorder=told,
        cluster=cluster.for_binder,
        others=made.pods.occupants,
    )
    made.reviews.namespaces = binder.labels_of_namespaces
    nodes = _watch_node(binder_kube, settings.node_name, on_change=binder.retry)
    cluster.node_object = lambda: nodes.named("", settings.node_name)
    cluster.on_change = binder.retry
    port = await made.link.start()
    stack.push_async_callback(made.link.stop)
    made.agents.line = made.link
    jobdir.make_directory(settings.directory.endpoint_directory)
    jobdir.write_json(settings.directory.endpoint, {"host": control_plane.api_address, "port": port}, is_durable=False)
    running: Mapping[str, Callable[[], Awaitable[object]]] = {
        **made.services(),
        "lease": lease.LeaseController(lease_kube, settings.node_name).run,
        "cluster's capacity": cluster.run,
        "binder's events": told.run,
        "watch of the node": nodes.run,
        "binder's watch": binder.informer.run,
        "binder's watch of namespaces": binder.namespaces.run,
        "binder": lambda: _bind(binder, nodes, made.pods),
        "memory": memory.trim_forever,
        "user's kubeconfig": lambda: _announce(settings, control_plane, made.node),
    }
    for name, run in running.items():
        group.create_task(service.kept(name, run), name=name)


def _watch_node(kube: client.Kube, name: str, *, on_change: Callable[[], None]) -> informer.Informer:
    """Watch the node object for what others set on it."""
    query = {"fieldSelector": f"metadata.name={name}"}
    return informer.Informer(kube, "/api/v1/nodes", query=query, on_change=lambda _uid: on_change())


async def _bind(binder: bind.Binder, nodes: informer.Informer, pods: watch.Pods) -> None:
    """Bind pods once it is known what is on the node already."""
    for known in (nodes, pods.informer, binder.namespaces):
        await known.synced.wait()
    await binder.queue.run()


async def _announce(settings: config.Settings, control_plane: plane.ControlPlane, nodes: node.NodeController) -> None:
    """Once the node is there, give the user the way in."""
    await control_plane.ready.wait()
    await nodes.registered.wait()
    while True:
        try:
            jobdir.write_bytes(settings.directory.kubeconfig, control_plane.admin_kubeconfig, is_durable=False)
        except OSError as error:  # a home without room
            LOG.warning("Cannot write the kubeconfig yet", path=settings.directory.kubeconfig, error=error.strerror)
            await asyncio.sleep(RETRY_SECONDS)
        else:
            break
    LOG.info("Ready: kubectl get nodes", url=control_plane.url)
    await _merge(control_plane.admin_kubeconfig, instead=f"export KUBECONFIG={settings.directory.kubeconfig}")
    await asyncio.get_running_loop().create_future()


async def _merge(document: bytes, *, instead: str) -> None:
    """Put the context into the user's own kubeconfig, as soon as its lock is free, its home has room, it is mended."""
    told = ""
    while True:
        try:
            await asyncio.to_thread(kubeconfig.merge, document)
        except Exception as error:  # noqa: BLE001 - a file that the user broke ends no control plane
            if told != str(error):
                told = str(error)
                LOG.warning(told, instead=instead)
            await asyncio.sleep(MERGE_SECONDS)
        else:
            return


class Kubelet:
    """Everything that makes the node a node, made once and wired here."""

    def __init__(
        self,
        settings: config.Settings,
        control_plane: plane.ControlPlane,
        *,
        kube: client.Kube,
        history: client.Kube,
        cluster: slurm_cluster.Cluster,
        site: Mapping[str, Any],
        launcher: sandbox.Launcher,
    ) -> None:
        state = settings.directory
        self._cluster = cluster
        self._troubles = control_plane.troubles
        self._troubles.tell("open files", descriptors.shortage(descriptors.hard_limit(), max_pods=settings.max_pods))
        self.pods = watch.Pods(kube, node=settings.node_name)
        self._gate = gate.Gate(on_open=self.pods.mark)
        self.agents = agents.Agents(state, on_change=self.pods.mark)
        self.link = self._make_link(control_plane)
        # A node's own identity may write events, and not list them.
        self.recorder = events.Recorder(kube, component="kubelet", host=settings.node_name, history=history)
        self._services = informer.Informer(kube, "/api/v1/services")
        self._runtime_classes = informer.Informer(kube, "/apis/node.k8s.io/v1/runtimeclasses")
        cluster.runtime_handlers = self._runtime_handlers
        self._poller = poller.Poller(cluster.slurm, poll_seconds=settings.poll_seconds)
        self._reporter = report.Reporter(kube)
        self._has_one_id = sandbox.has_one_id(site)
        self._store = store.ImageStore(
            settings.images_for(has_one_id=self._has_one_id),
            insecure=settings.insecure_registries,
            has_one_owner=self._has_one_id,
            used_by=uses.Uses(
                settings.images_for(has_one_id=self._has_one_id), pods=Path(state.pods), knows=self.pods.has_living
            ),
            policy=collect.policy(settings),
        )
        self._image_fs = imagefs.ImageFs(
            self._store,
            directory=settings.images_for(has_one_id=self._has_one_id),
            others=(Path(state.root),),
            knows_pods=self.pods.informer.synced,
        )
        self.node = node.NodeController(kube, cluster.facts, self._observe)
        self.reviews = review.Reviews(cluster=cluster.for_pods, gate=self._gate, others=self.pods.occupants)
        self._server = self._make_server(settings, control_plane, kube)
        network = sandbox.choose(settings.network, site)
        LOG.info("Pods' network", mode=network, has_subordinate_ids=not self._has_one_id)
        self._allocator = submit.JobPerPod(cluster.slurm, self._poller, state=state, on_change=self.pods.mark)
        self.pods.serve(
            services.Services(
                find=self.pods.informer.objects.get,
                listen=self.pods.listen,
                beside=self.pods.beside,
                cluster=cluster.for_pods,
                preparer=self._make_preparer(settings, control_plane, kube=kube, launcher=launcher),
                allocator=self._allocator,
                agents=self.agents,
                reporter=self._reporter,
                recorder=self.recorder,
                state=state,
                preparations=asyncio.Semaphore(PREPARATIONS_AT_ONCE),
                submissions=asyncio.Semaphore(SUBMISSIONS_AT_ONCE),
                gate=self._gate,
                clock=clock.SYSTEM,
            )
        )

    def services(self) -> dict[str, Callable[[], Awaitable[object]]]:
        """What must run, by the name that an error would use."""
        return {
            "watch of Slurm's jobs": self._poller.run,
            "watch of services": self._services.run,
            "watch of RuntimeClasses": self._runtime_classes.run,
            "node": self.node.run,
            "kubelet's events": self.recorder.run,
            "list of images": self._image_fs.watch,
            "garbage collection of images": self._image_fs.collect,
            "kubelet's API": self._server.run,
            "pods": self.pods.run,
            "jobs of no pod": self._sweep,
        }

    def _runtime_handlers(self) -> dict[str, str] | None:
        """Return the handler of each RuntimeClass; None before they have been listed."""
        if not self._runtime_classes.synced.is_set():
            return None
        return {raw["metadata"]["name"]: raw["handler"] for raw in self._runtime_classes.objects.values()}

    async def _sweep(self) -> None:
        """End jobs that are no pod's, once it is known which pods there are."""
        await self.pods.informer.synced.wait()
        await self._allocator.sweep(self.pods)

    def _make_link(self, control_plane: plane.ControlPlane) -> link_server.LinkServer:
        certificate = control_plane.link.issue(LINK_SERVER_NAME, dns_names=(LINK_SERVER_NAME,), is_server=True)
        return link_server.LinkServer(
            host=LISTEN,
            ca=control_plane.link.certificate_pem,
            certificate=certificate.certificate_pem,
            key=certificate.key_pem,
            on_report=self.agents.took_report,
            on_connected=self.agents.connected,
            on_disconnected=self.agents.disconnected,
            bell=doorbell.Doorbell(
                host=control_plane.api_address,
                is_known=self.pods.informer.objects.__contains__,
                key=functools.partial(doorbell.key_of, control_plane.link.key_pem),
                read=self.agents.rung,
            ),
        )

    def _make_preparer(
        self,
        settings: config.Settings,
        control_plane: plane.ControlPlane,
        *,
        kube: client.Kube,
        launcher: sandbox.Launcher,
    ) -> prepare.Preparer:
        where = translate.Site(
            cluster_domain=settings.cluster_domain,
            api_host=control_plane.api_address,
            api_port=control_plane.api_port,
            images=settings.images_directory,
            prelude=settings.prelude,
            has_one_id=self._has_one_id,
            log_limits={
                "file_bytes": settings.container_log_max_size << 20,
                "files": settings.container_log_max_files,
            },
        )
        return prepare.Preparer(
            kube=kube,
            store=self._store,
            certificates=Certificates(control_plane.link),
            services=lambda: list(self._services.objects.values()),
            recorder=self.recorder,
            site=where,
            launcher=launcher,
            addresses=addresses.Addresses(settings.pod_cidr, pods=lambda: self.pods.informer.objects),
            state=settings.directory,
        )

    def _make_server(
        self, settings: config.Settings, control_plane: plane.ControlPlane, kube: client.Kube
    ) -> node_server.KubeletServer:
        certificate = control_plane.kubelet_certificate
        control_plane.kubelet_port.bound.close()
        return node_server.KubeletServer(
            source.Source(self.pods, self._reporter),
            state=settings.directory,
            authenticator=auth.Authenticator(kube),
            authorizer=auth.Authorizer(kube, settings.node_name),
            opener=self.link,
            context=node_server.tls(
                certificate_pem=certificate.certificate_pem,
                key_pem=certificate.key_pem,
                client_ca_pem=control_plane.ca_pem,
            ),
            host=LISTEN,
            port=control_plane.kubelet_port.port,
            configuration=configz.configuration(
                address=control_plane.api_address,
                port=control_plane.kubelet_port.port,
                max_pods=settings.max_pods,
                cluster_domain=settings.cluster_domain,
                log_file_mib=settings.container_log_max_size,
                log_files=settings.container_log_max_files,
                images=collect.configuration(collect.policy(settings)),
            ),
            reviews=self.reviews,
        )

    def _observe(self) -> node.Observation:
        cluster = self._cluster
        snapshot = self._poller.snapshot
        answers = [at for at in (cluster.answered_at, snapshot.answered_at if snapshot else None) if at is not None]
        ready = node.readiness(
            now=time.time(),
            started_at=cluster.started_at,
            answered_at=max(answers, default=None),
            error=str(self._poller.error or cluster.error or ""),
        )
        return node.Observation(
            capacity=cluster.capacity,
            readiness=ready,
            images=self._image_fs.images,
            trouble=str(self._troubles),
            disk_pressure=self._image_fs.pressure,
        )


def _node_facts(settings: config.Settings, control_plane: plane.ControlPlane, site: Mapping[str, Any]) -> node.Facts:
    machine = host.read(
        identity=control_plane.ca_pem.decode(),
        os_image=f"Slurm {site.get('slurm_version') or 'of unknown version'}",
    )
    return node.Facts(
        name=settings.node_name,
        host=machine,
        address=control_plane.api_address,
        hostname=settings.node_name,
        port=control_plane.kubelet_port.port,
        apptainer_version=(site.get("apptainer") or {}).get("version") or "unknown",
        max_pods=settings.max_pods,
    )


class Certificates:
    """Issues what agents identify themselves with (see `prepare.Certificates`)."""

    def __init__(self, authority: pki.Authority) -> None:
        self._authority = authority

    def for_agent(self, uid: str) -> records.Link:
        """A certificate whose common name is the pod's UID."""
        made = self._authority.issue(uid, is_client=True, days=AGENT_CERTIFICATE_DAYS)
        return {
            "ca": self._authority.certificate_pem.decode(),
            "certificate": made.certificate_pem.decode(),
            "key": made.key_pem.decode(),
            "bell": doorbell.key_of(self._authority.key_pem, uid).hex(),
        }
