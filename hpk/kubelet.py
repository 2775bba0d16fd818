"""The kubelet: everything that makes the node a node, created and connected here."""

from __future__ import annotations

import asyncio
import functools
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from hpk.aio import clock, descriptors
from hpk.images import collect, store, uses
from hpk.kube import client, informer
from hpk.link import doorbell, wire
from hpk.link import server as link_server
from hpk.network import ipam, sandbox
from hpk.node import auth, configz, imagefs, node, nodestatus
from hpk.node import server as node_server
from hpk.pods import agents, events, gate, prepare, review, services, statuswriter, submit, translate, watch, worker
from hpk.slurm import poller

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from hpk import cluster as slurm_cluster
    from hpk import config, jobdir, pki, records
    from hpk.controlplane import plane
    from hpk.pods import schedule

LOG = structlog.get_logger(__name__)

PREPARATIONS_AT_ONCE = 64
"""Pods whose plans, secrets included, are in memory: enough that sbatch never waits for one."""
SUBMISSIONS_AT_ONCE = 8
"""Pods submitted side by side: enough to hide latency, few enough for a shared slurmctld."""
AGENT_CERTIFICATE_DAYS = 3650
"""A pod may run for as long as the authority is valid, and its certificate is good for its own link only."""
LISTEN = "0.0.0.0"  # noqa: S104 - the API server, agents and users come from other nodes; all of it is mutual TLS


class Kubelet:
    """Everything that makes the node a node.

    Args:
        history: A client that may list events: the node's own identity may only write them.
        around: What is on the node, shared with the binder; the watch of the pods keeps it current.
    """

    def __init__(
        self,
        settings: config.Settings,
        control_plane: plane.ControlPlane,
        *,
        kube: client.Kube,
        history: client.Kube,
        cluster: slurm_cluster.ClusterMonitor,
        site: Mapping[str, Any],
        launcher: sandbox.SandboxCommands,
        around: schedule.Surroundings,
    ) -> None:
        state = settings.directory
        self._cluster = cluster
        self._troubles = control_plane.troubles
        self._troubles.tell("open files", descriptors.shortage(descriptors.hard_limit(), max_pods=settings.max_pods))
        self.recorder = events.EventRecorder(kube, component="kubelet", host=settings.node_name, history=history)
        self._reporter = statuswriter.StatusWriter(kube)
        self.pods = watch.Pods(
            kube,
            node=settings.node_name,
            state=state,
            occupants=around.others,
            recorder=self.recorder,
            reporter=self._reporter,
            make_worker=lambda uid: worker.Worker(uid, self._used),
        )
        self._gate = gate.Gate(on_open=self.pods.mark)
        self.agents = agents.Agents(state, on_change=self.pods.mark)
        self.link = self._make_link(control_plane)
        self._services = informer.Informer(kube, "/api/v1/services")
        self._poller = poller.Poller(cluster.slurm, poll_seconds=settings.poll_seconds)
        self._has_one_id = sandbox.has_one_id(site)
        images = settings.images_for(has_one_id=self._has_one_id)
        self._store = store.ImageStore(
            images,
            insecure=settings.insecure_registries,
            has_one_owner=self._has_one_id,
            used_by=uses.Uses(images, pods=Path(state.pods), knows=self.pods.has_living),
            policy=collect.policy(settings),
        )
        self._image_fs = imagefs.ImageFs(
            self._store,
            directory=images,
            others=(Path(state.root),),
            knows_pods=self.pods.informer.synced,
        )
        self.node = node.NodeController(kube, cluster.facts, self._observe)
        self._server = self._make_server(settings, control_plane, kube, around)
        network = sandbox.choose(settings.network, site)
        LOG.info("Pods' network", mode=network, has_subordinate_ids=not self._has_one_id)
        self._allocator = submit.JobPerPod(cluster.slurm, self._poller, state=state, on_change=self.pods.mark)
        preparer = self._make_preparer(settings, control_plane, kube=kube, launcher=launcher)
        self._used = self._make_services(preparer, state)

    def tasks(self) -> dict[str, Callable[[], Awaitable[object]]]:
        """Return the kubelet's tasks, by the names that errors use."""
        return {
            "watch of Slurm's jobs": self._poller.run,
            "watch of services": self._services.run,
            "node": self.node.run,
            "kubelet's events": self.recorder.run,
            "list of images": self._image_fs.watch,
            "garbage collection of images": self._image_fs.collect,
            "kubelet's API": self._server.run,
            "pods": self.pods.run,
            "jobs of no pod": self._sweep,
        }

    async def _sweep(self) -> None:
        """Cancel jobs that belong to no pod, once the pods have been listed."""
        await self.pods.informer.synced.wait()
        await self._allocator.sweep(self.pods)

    def _make_link(self, control_plane: plane.ControlPlane) -> link_server.LinkServer:
        certificate = control_plane.link.issue(wire.SERVER_NAME, dns_names=(wire.SERVER_NAME,), is_server=True)
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

    def _make_services(self, preparer: prepare.Preparer, state: jobdir.StateDirectory) -> services.Services:
        return services.Services(
            find=self.pods.informer.objects.get,
            listen=self.pods.listen,
            beside=self.pods.beside,
            cluster=self._cluster.for_pods,
            preparer=preparer,
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

    def _make_preparer(
        self,
        settings: config.Settings,
        control_plane: plane.ControlPlane,
        *,
        kube: client.Kube,
        launcher: sandbox.SandboxCommands,
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
            credentials=functools.partial(agent_credentials, control_plane.link),
            services=lambda: list(self._services.objects.values()),
            recorder=self.recorder,
            site=where,
            launcher=launcher,
            addresses=ipam.Addresses(settings.pod_cidr, pods=lambda: self.pods.informer.objects),
            state=settings.directory,
        )

    def _make_server(
        self,
        settings: config.Settings,
        control_plane: plane.ControlPlane,
        kube: client.Kube,
        around: schedule.Surroundings,
    ) -> node_server.KubeletServer:
        certificate = control_plane.kubelet_certificate
        control_plane.kubelet_port.bound.close()
        return node_server.KubeletServer(
            self.pods,
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
            reviews=review.Reviews(cluster=self._cluster.for_pods, gate=self._gate, around=around),
        )

    def _observe(self) -> nodestatus.NodeObservation:
        cluster = self._cluster
        snapshot = self._poller.snapshot
        answers = [at for at in (cluster.answered_at, snapshot.answered_at if snapshot else None) if at is not None]
        ready = nodestatus.readiness(
            now=time.time(),
            started_at=cluster.started_at,
            answered_at=max(answers, default=None),
            error=str(self._poller.error or cluster.error or ""),
        )
        return nodestatus.NodeObservation(
            capacity=cluster.capacity,
            readiness=ready,
            images=self._image_fs.images,
            trouble=str(self._troubles),
            disk_pressure=self._image_fs.pressure,
        )


def agent_credentials(authority: pki.Authority, uid: str) -> records.LinkCredentials:
    """Return a certificate whose common name is the pod's UID, and the key of its doorbell."""
    made = authority.issue(uid, is_client=True, days=AGENT_CERTIFICATE_DAYS)
    return {
        "ca": authority.certificate_pem.decode(),
        "certificate": made.certificate_pem.decode(),
        "key": made.key_pem.decode(),
        "bell": doorbell.key_of(authority.key_pem, uid).hex(),
    }
