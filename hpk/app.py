"""The one composition root: settings → services → one TaskGroup.

Read it as the list of everything that runs in the control plane's job.  The API server starts first and stops
last, so that the kubelet's last word is still heard.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import structlog

from hpk import aiotasks, errors, jobdir, kubeconfig, kubelet
from hpk import cluster as slurm_cluster
from hpk.aio import forever, memory, service, signals
from hpk.controlplane import plane
from hpk.kube import client, informer
from hpk.network import sandbox, warm
from hpk.node import host, lease, node, nodestatus
from hpk.pods import (
    bind,
    events,
    watch,
)
from hpk.slurm import client as slurm_client
from hpk.slurm import runner

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from hpk import config

LOG = structlog.get_logger(__name__)
Answer = TypeVar("Answer")

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
            await aiotasks.first_of(stop, control_plane.serving)
            if stop.number is None:
                running_kubelet = _run_kubelet(settings, control_plane, image_changed_at=image_changed_at)
                task = outer.create_task(running_kubelet, name="kubelet")
                await stop.wait()
                task.cancel()  # also if it has not come up yet
                await asyncio.wait([task])
            LOG.info("Stopping", signal=str(stop.number))
            running.cancel()


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
    site, cluster = await _meet_slurm(settings, control_plane)
    kube = await stack.enter_async_context(await client.Kube.from_kubeconfig(control_plane.kubelet_kubeconfig))
    # Of its own: nothing that the pods ask for may make the lease wait for a connection.
    lease_kube = await stack.enter_async_context(await client.Kube.from_kubeconfig(control_plane.kubelet_kubeconfig))
    binder_kube = await stack.enter_async_context(await client.Kube.from_kubeconfig(control_plane.binder_kubeconfig))
    copies = Path(settings.directory.warm)
    warmth = await asyncio.to_thread(warm.provide, copies, image=settings.image_file, changed_at=image_changed_at)
    launcher = sandbox.Launcher(settings, warmth=warmth, kill_wait_seconds=await cluster.kill_wait_seconds())
    made = kubelet.Kubelet(
        settings, control_plane, kube=kube, history=binder_kube, cluster=cluster, site=site, launcher=launcher
    )
    told = events.EventRecorder(binder_kube, component=bind.SCHEDULER, host=settings.node_name, history=binder_kube)
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
    await _open_link(settings, control_plane, made, stack=stack)
    running: Mapping[str, Callable[[], Awaitable[object]]] = {
        **made.tasks(),
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


async def _meet_slurm(
    settings: config.Settings, control_plane: plane.ControlPlane
) -> tuple[Mapping[str, Any], slurm_cluster.ClusterMonitor]:
    """Return what the gateway says of its host, and the cluster, once both are known.

    Raises:
        errors.Fatal: There is no gateway.
    """
    if settings.gateway is None:
        raise errors.Fatal("Cannot reach Slurm: HPK_GATEWAY is not set; start the program by hpk.sbatch or 'hpk up'")
    slurm = slurm_client.Slurm(runner.GatewayClient(settings.gateway))
    site = await _patiently(lambda: slurm.site(apptainer=settings.apptainer))
    cluster = slurm_cluster.ClusterMonitor(
        slurm,
        _node_facts(settings, control_plane, site),
        slurm_cluster.flags_of(settings),
        has_subordinate_ids=not sandbox.has_one_id(site),
        has_selinux=host.has_selinux(),
        network=sandbox.choose(settings.network, site),
    )
    await cluster.refresh()
    return site, cluster


async def _open_link(
    settings: config.Settings, control_plane: plane.ControlPlane, made: kubelet.Kubelet, *, stack: AsyncExitStack
) -> None:
    """Listen for agents, and write down where, for those that run already."""
    port = await made.link.start()
    stack.push_async_callback(made.link.stop)
    made.agents.line = made.link
    jobdir.make_directory(settings.directory.endpoint_directory)
    jobdir.write_json(settings.directory.endpoint, {"host": control_plane.api_address, "port": port}, is_durable=False)


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


def _node_facts(
    settings: config.Settings, control_plane: plane.ControlPlane, site: Mapping[str, Any]
) -> nodestatus.NodeFacts:
    machine = host.read(
        identity=control_plane.ca_pem.decode(),
        os_image=f"Slurm {site.get('slurm_version') or 'of unknown version'}",
    )
    return nodestatus.NodeFacts(
        name=settings.node_name,
        host=machine,
        address=control_plane.api_address,
        hostname=settings.node_name,
        port=control_plane.kubelet_port.port,
        apptainer_version=(site.get("apptainer") or {}).get("version") or "unknown",
        max_pods=settings.max_pods,
    )
