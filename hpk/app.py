"""The one composition root: settings → services → one TaskGroup.

It lists everything that runs in the control plane's job. The API server starts first and stops last, so that it still
gets the kubelet's last writes.
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
from hpk.node import lease, node, nodestatus, systeminfo
from hpk.pods import bind, events, occupants, runtime, schedule
from hpk.slurm import client as slurm_client
from hpk.slurm import runner

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from hpk import config

LOG = structlog.get_logger(__name__)
Answer = TypeVar("Answer")

RETRY_SECONDS = 2.0
MERGE_SECONDS = 60.0
"""Pause between attempts to write the user's kubeconfig; each may wait ten seconds for its lock."""


async def serve(settings: config.Settings) -> None:
    """Run the control plane and the kubelet until SIGTERM, SIGINT or SIGHUP.

    Raises:
        errors.Fatal: An essential part cannot run; the text says what to do.
    """
    image_changed_at = warm.changed_at(settings.image_file)  # now: another may be installed while this waits
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
                task.cancel()  # it may still be starting
                await asyncio.wait([task])
            LOG.info("Stopping", signal=str(stop.number))
            running.cancel()


async def _run_kubelet(
    settings: config.Settings, control_plane: plane.ControlPlane, *, image_changed_at: int | None
) -> None:
    """Create all services of the kubelet, and run them until cancelled."""
    async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:
        enter = stack.enter_async_context
        kube = await enter(await client.Kube.from_kubeconfig(control_plane.kubelet_kubeconfig))
        # Another client, so that the lease never waits for a connection that pods' requests have taken.
        lease_kube = await enter(await client.Kube.from_kubeconfig(control_plane.kubelet_kubeconfig))
        binder_kube = await enter(await client.Kube.from_kubeconfig(control_plane.binder_kubeconfig))
        runtime_classes = informer.Informer(kube, "/apis/node.k8s.io/v1/runtimeclasses")
        namespaces = informer.Informer(binder_kube, "/api/v1/namespaces")
        query = {"fieldSelector": f"metadata.name={settings.node_name}"}  # what others set on the node
        nodes = informer.Informer(binder_kube, "/api/v1/nodes", query=query, on_change=lambda _uid: binder.retry())
        site, cluster = await _meet_slurm(settings, control_plane, nodes, runtime_classes)
        copies = Path(settings.directory.warm)
        warmth = await asyncio.to_thread(warm.provide, copies, image=settings.image_file, changed_at=image_changed_at)
        launcher = sandbox.SandboxCommands(settings, warmth=warmth, kill_wait_seconds=await cluster.kill_wait_seconds())
        around = schedule.Surroundings(others=occupants.Occupants(), namespaces=lambda: schedule.labels_of(namespaces))
        made = kubelet.Kubelet(
            settings,
            control_plane,
            kube=kube,
            history=binder_kube,
            cluster=cluster,
            site=site,
            launcher=launcher,
            around=around,
        )
        told = events.EventRecorder(binder_kube, component=bind.SCHEDULER, host=settings.node_name, history=binder_kube)
        await asyncio.gather(told.load(), made.recorder.load())
        binder = bind.Binder(
            binder_kube, node=settings.node_name, recorder=told, cluster=cluster.for_binder, around=around
        )
        await _open_link(settings, control_plane, made, stack=stack)
        running: Mapping[str, Callable[[], Awaitable[object]]] = {
            **made.tasks(),
            "lease": lease.LeaseController(lease_kube, settings.node_name).run,
            "cluster's capacity": lambda: cluster.run(binder.retry),
            "binder's events": told.run,
            "watch of the node": nodes.run,
            "watch of RuntimeClasses": runtime_classes.run,
            "binder's watch": binder.informer.run,
            "binder's watch of namespaces": namespaces.run,
            "binder": lambda: _bind(binder, nodes, made.pods.informer, namespaces),
            "memory": memory.trim_forever,
            "user's kubeconfig": lambda: _announce(settings, control_plane, made.node),
        }
        for name, run in running.items():
            group.create_task(service.kept(name, run), name=name)


async def _patiently(ask: Callable[[], Awaitable[Answer]]) -> Answer:
    """Return the answer, retrying while Slurm is unavailable, which must not end the control plane."""
    while True:
        try:
            return await ask()
        except errors.SlurmUnavailable as error:
            LOG.warning("Cannot start the kubelet yet", error=str(error))
            await asyncio.sleep(RETRY_SECONDS)


async def _meet_slurm(
    settings: config.Settings,
    control_plane: plane.ControlPlane,
    nodes: informer.Informer,
    runtime_classes: informer.Informer,
) -> tuple[Mapping[str, Any], slurm_cluster.ClusterMonitor]:
    """Return the gateway's survey of its host, and the cluster's monitor after its first query.

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
        has_selinux=systeminfo.has_selinux(),
        network=sandbox.choose(settings.network, site),
        node_object=lambda: nodes.named("", settings.node_name),
        runtime_handlers=lambda: runtime.handlers(runtime_classes),
    )
    await cluster.refresh()
    return site, cluster


async def _open_link(
    settings: config.Settings, control_plane: plane.ControlPlane, made: kubelet.Kubelet, *, stack: AsyncExitStack
) -> None:
    """Listen for agents, and write the address to the file from which running agents read it."""
    port = await made.link.start()
    stack.push_async_callback(made.link.stop)
    made.agents.line = made.link
    jobdir.make_directory(settings.directory.endpoint_directory)
    jobdir.write_json(settings.directory.endpoint, {"host": control_plane.api_address, "port": port}, is_durable=False)


async def _bind(binder: bind.Binder, *needed: informer.Informer) -> None:
    """Bind pods, once what is needed to judge them has been listed."""
    for one in needed:
        await one.synced.wait()
    await binder.queue.run()


async def _announce(settings: config.Settings, control_plane: plane.ControlPlane, nodes: node.NodeController) -> None:
    """Write the kubeconfigs once the node is registered."""
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
    """Add the context to the user's own kubeconfig, once its lock is free, its home has room and it can be parsed."""
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
    machine = systeminfo.read(
        identity=control_plane.ca_pem.decode(),
        os_image=f"Slurm {site.get('slurm_version') or 'of unknown version'}",
    )
    return nodestatus.NodeFacts(
        name=settings.node_name,
        system=machine,
        address=control_plane.api_address,
        hostname=settings.node_name,
        port=control_plane.kubelet_port.port,
        apptainer_version=(site.get("apptainer") or {}).get("version") or "unknown",
        max_pods=settings.max_pods,
    )
