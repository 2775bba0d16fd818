"""The translation of an admitted pod and its ingredients into the agent's plan and sbatch's options; pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from hpk import errors, jobdir
from hpk.kube import quantity, v1
from hpk.pods import admit, disk, environment, resources, warning
from hpk.slurm import flags
from hpk.volumes import plan as volume_plan

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime
    from pathlib import Path

    from hpk import records
    from hpk.images import image as images
    from hpk.kube import handlers
    from hpk.slurm import model as slurm_model
    from hpk.volumes import sources

NODE_HOSTS_HEAD = "# Kubernetes-managed hosts file (host network).\n"
HOSTS_HEAD = """# Kubernetes-managed hosts file.
127.0.0.1\tlocalhost
::1\tlocalhost ip6-localhost ip6-loopback
fe00::0\tip6-localnet
fe00::0\tip6-mcastprefix
fe00::1\tip6-allnodes
fe00::2\tip6-allrouters
"""
SAFE_NAME_LENGTH = 100

TASK_COUNTS = frozenset({"ntasks-per-node", "ntasks-per-socket", "ntasks-per-core"})
"""Options that, with the number of nodes, give the number of tasks."""


@dataclass(frozen=True, kw_only=True)
class Site:
    """The values that stay the same while this kubelet runs.

    Attributes:
        api_host: The API server's address that works from compute nodes.
        images: The directory of converted images.
        has_one_id: Whether the user has no subordinate ids.
        log_limits: How much one run of a container may log; None for the agent's own limits.
    """

    cluster_domain: str
    api_host: str
    api_port: int
    images: Path
    prelude: str
    has_one_id: bool = False
    log_limits: records.LogLimits | None = None


@dataclass(frozen=True, kw_only=True)
class Fetched:
    """Everything fetched for containers of one pod."""

    images: Mapping[str, images.Image]
    sources: sources.Sources
    services: list[dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Ingredients(Fetched):
    """Everything fetched for one pod."""

    link: records.LinkCredentials
    started_at: datetime
    address: records.Address | None = None


class ContainerConfigError(errors.HpkError):
    """A container cannot be configured (see `environment.InvalidConfig`); ``container`` is its name."""

    def __init__(self, message: str, *, container: str) -> None:
        super().__init__(message)
        self.container = container


def pod_plan(admitted: admit.Admitted, *, site: Site, cluster: admit.Cluster, found: Ingredients) -> records.PodPlan:
    """Return ``spec.json``.

    Raises:
        volume_plan.SourceMissing: A volume lacks its ConfigMap or Secret.
        ContainerConfigError: A container lacks one, or would run as root against its will.
        errors.PodRefused: A reference names something that does not exist.
    """
    pod = admitted.pod
    deadline = pod.spec.active_deadline_seconds
    containers = [container_plan(pod, c, site=site, cluster=cluster, found=found) for c in pod.all_containers]
    plan: records.PodPlan = {
        "version": jobdir.VERSION,
        "uid": pod.metadata.uid,
        "namespace": pod.metadata.namespace,
        "name": pod.metadata.name,
        "hostname": environment.hostname(pod),
        "restart_policy": pod.spec.restart_policy,  # type: ignore[typeddict-item]
        "grace_seconds": pod.spec.termination_grace_period_seconds,
        "deadline_at": found.started_at.timestamp() + deadline if deadline is not None else None,
        "network": admitted.network,  # type: ignore[typeddict-item]
        "hosts": hosts(pod, site.cluster_domain),
        "resolv_conf": "" if pod.spec.dns_policy == "None" else None,
        "link": found.link,
        "volumes": volume_plan.volumes(
            pod, found.sources, allocatable=cluster.allocatable, memory_limit=resources.memory_limit(pod)
        ),
        "containers": containers,
        "fs_group": pod.spec.security_context.fs_group,
        "disk_limits": disk.limits(pod),
        "has_one_id": site.has_one_id,
        "share_processes": pod.spec.share_process_namespace,
        "warning": warning.early(pod, admitted.options, cluster.capacity).plan,
    }
    if (added := dns(pod)) is not None:
        plan["dns"] = added
    if plan["network"] == "overlay" and found.address:
        plan["address"] = found.address
    if site.log_limits:
        plan["log_limits"] = site.log_limits
    return plan


def container_plan(
    pod: v1.Pod, container: v1.Container, *, site: Site, cluster: admit.Cluster, found: Fetched
) -> records.ContainerPlan:
    """Return the agent's plan for one container, including an ephemeral one.

    Raises:
        ContainerConfigError: It lacks a ConfigMap or Secret, or would run as root against its will.
        errors.PodRefused: It refers to a field of the pod that does not exist.
    """
    try:
        return _container_plan(pod, container, site=site, cluster=cluster, found=found)
    except environment.InvalidConfig as error:
        raise ContainerConfigError(str(error), container=container.name) from error


def _container_plan(
    pod: v1.Pod, container: v1.Container, *, site: Site, cluster: admit.Cluster, found: Fetched
) -> records.ContainerPlan:
    image, context = found.images[container.name], container.security_context
    env, argv = _process(pod, container, image, site=site, cluster=cluster, found=found)
    plan: records.ContainerPlan = {
        "name": container.name,
        "kind": _kind(pod, container),
        "image": container.image,
        "image_id": image.image_id,
        "image_file": _image_path(image, site),
        "image_offset": image.offset,
        "argv": argv,
        "env": [[name, value] for name, value in env.items()],
        "cwd": container.working_dir or image.config.working_dir or "/",
        "user": _user(pod, container, image),
        "mounts": [_mount(mount, env, container.name) for mount in container.volume_mounts],
        "read_only_root": context.read_only_root_filesystem,
        "no_new_privileges": context.allow_privilege_escalation is False,
        "add_capabilities": context.capabilities.add,
        "drop_capabilities": context.capabilities.drop,
        "restart_policy": "Never" if isinstance(container, v1.EphemeralContainer) else container.restart_policy,
        "termination_message_path": container.termination_message_path,
        "termination_message_policy": container.termination_message_policy,
        "stop_signal": _stop_signal(container, image),
        "gpu": bool(container.resources.limits.get(resources.GPU)),
        "tty": container.tty,
        "stdin": container.stdin,
        "stdin_once": container.stdin_once,
        "liveness_probe": _raw(container.liveness_probe),
        "readiness_probe": _raw(container.readiness_probe),
        "startup_probe": _raw(container.startup_probe),
        "lifecycle": _raw(container.lifecycle),
        "memory_limit": _memory_limit(pod, container),
        "seccomp_profile": _seccomp_profile(pod, container),
        "ports": {port.name: port.container_port for port in container.ports if port.name},
    }
    if isinstance(container, v1.EphemeralContainer) and container.target_container_name:
        plan["target"] = container.target_container_name
    return plan


def _kind(pod: v1.Pod, container: v1.Container) -> Literal["init", "sidecar", "app", "ephemeral"]:
    if isinstance(container, v1.EphemeralContainer):
        return "ephemeral"
    if container in pod.spec.init_containers:
        return "sidecar" if container.restart_policy == "Always" else "init"
    return "app"


def _stop_signal(container: v1.Container, image: images.Image) -> str:
    given = container.lifecycle.stop_signal if container.lifecycle else ""
    return given or image.config.stop_signal or "SIGTERM"


def _raw(part: handlers.Probe | handlers.Lifecycle | None) -> dict[str, Any] | None:
    """Return a probe or hooks as the API has them, without unset fields."""
    raw: dict[str, Any] | None = msgspec.to_builtins(part)
    return raw


def _seccomp_profile(pod: v1.Pod, container: v1.Container) -> str:
    """Return the container's profile, else the pod's, else none (kuberuntime/helpers.go, getSeccompProfile)."""
    profile = container.security_context.seccomp_profile or pod.spec.security_context.seccomp_profile
    return profile.type if profile else "Unconfined"


def _memory_limit(pod: v1.Pod, container: v1.Container) -> int | None:
    """Return the container's limit, else the pod's, which no container may exceed alone."""
    limit = container.resources.limits.get("memory") or pod.spec.resources.limits.get("memory")
    return quantity.ceiling(quantity.parse(limit)) if limit else None


def _process(
    pod: v1.Pod,
    container: v1.Container,
    image: images.Image,
    *,
    site: Site,
    cluster: admit.Cluster,
    found: Fetched,
) -> tuple[dict[str, str], list[str]]:
    links = environment.service_variables(
        found.services, namespace=pod.metadata.namespace, has_links=pod.spec.enable_service_links
    )
    env = environment.resolve(
        pod,
        container,
        found=found.sources,
        image=image.config.env,
        services={**links, **environment.api_server_variables(site.api_host, site.api_port)},
        allocatable=cluster.allocatable,
    )
    argv = environment.argv(container, entrypoint=image.config.entrypoint, command=image.config.command, known=env)
    return env, argv


def _image_path(image: images.Image, site: Site) -> str:
    """Return the path in the sandbox: in its images directory, or below its host directory for a user's own SIF."""
    if image.file.is_relative_to(site.images):
        return f"{jobdir.SANDBOX_IMAGES}/{image.file.relative_to(site.images)}"
    return f"{jobdir.SANDBOX_HOST}{image.file}"


def _user(pod: v1.Pod, container: v1.Container, image: images.Image) -> records.ProcessUser:
    mine, theirs = container.security_context, pod.spec.security_context
    uid = mine.run_as_user if mine.run_as_user is not None else theirs.run_as_user
    gid = mine.run_as_group if mine.run_as_group is not None else theirs.run_as_group
    is_not_root = mine.run_as_non_root if mine.run_as_non_root is not None else theirs.run_as_non_root
    if is_not_root:
        _check_not_root(pod, container, uid=uid, name=image.config.user)
    groups = list(theirs.supplemental_groups)
    if theirs.fs_group is not None:
        groups.append(theirs.fs_group)
    return {"uid": uid, "gid": gid, "name": image.config.user, "groups": groups}


def _check_not_root(pod: v1.Pod, container: v1.Container, *, uid: int | None, name: str) -> None:
    who = f'(pod: "{pod.metadata.name}_{pod.metadata.namespace}({pod.metadata.uid})", container: {container.name})'
    user = name.partition(":")[0]
    if uid == 0:
        raise environment.InvalidConfig(f"container's runAsUser breaks non-root policy {who}")
    if uid is None and user in {"", "0", "root"}:
        raise environment.InvalidConfig(f"container has runAsNonRoot and image will run as root {who}")
    if uid is None and not user.isdigit():
        raise environment.InvalidConfig(
            f"container has runAsNonRoot and image has non-numeric user ({user}), cannot verify user is non-root {who}"
        )


def _mount(mount: v1.VolumeMount, env: Mapping[str, str], container: str) -> records.Mount:
    sub_path = mount.sub_path
    if mount.sub_path_expr:
        sub_path = environment.expand(mount.sub_path_expr, env)
        if "$(" in sub_path or sub_path.startswith("/") or "`" in sub_path or ".." in sub_path.split("/"):
            raise environment.InvalidConfig(
                f'failed to prepare subPath for volumeMount "{mount.name}" of container "{container}": '
                f"'{mount.sub_path_expr}' does not expand to a relative path"
            )
    return {"volume": mount.name, "path": mount.mount_path, "sub_path": sub_path, "read_only": mount.read_only}


def hosts(pod: v1.Pod, domain: str) -> str:
    """Return /etc/hosts as the kubelet writes it; the agent fills in addresses and the node's own file."""
    name = environment.hostname(pod)
    spec = pod.spec
    if spec.host_network:
        text = NODE_HOSTS_HEAD + jobdir.NODE_HOSTS
    else:
        fqdn = f"{name}.{spec.subdomain}.{pod.metadata.namespace}.svc.{domain}\t" if spec.subdomain else ""
        text = HOSTS_HEAD + f"{jobdir.POD_IP}\t{fqdn}{name}\n"
    if spec.host_aliases:
        text += "\n# Entries added by HostAliases.\n"
        text += "".join(f"{alias.ip}\t" + "\t".join(alias.hostnames) + "\n" for alias in spec.host_aliases)
    return text


def dns(pod: v1.Pod) -> records.Dns | None:
    """Return the pod's additions to resolv.conf, for any dnsPolicy; None without additions."""
    config = pod.spec.dns_config
    if config == v1.DnsConfig():
        return None
    return {
        "nameservers": config.nameservers,
        "searches": config.searches,
        "options": [(option.name, option.value) for option in config.options],
    }


def directives(
    admitted: admit.Admitted, *, directory: Path, capacity: slurm_model.ClusterCapacity | None = None
) -> dict[str, str | None]:
    """Return the job's ``#SBATCH`` options: ours, overridden by the settings' and then by the pod's own.

    The capacity must be the one used for the pod's plan.
    """
    pod, asked, asked_for = admitted.pod, admitted.request, admitted.options
    uid = pod.metadata.uid
    options: dict[str, str | None] = {
        "job-name": f"{pod.metadata.namespace}/{pod.metadata.name}"[:SAFE_NAME_LENGTH],
        "comment": uid,
        "ntasks": "1",
        "cpus-per-task": str(asked.cpus),
    }
    if asked.memory_bytes is not None:
        options["mem"] = f"{-(-asked.memory_bytes // (1 << 20))}M"
    if asked.gpus:
        options["gres"] = f"gpu:{asked.gpus}"
    if asked_for.keys() & TASK_COUNTS or (asked_for.get("nodes") or "1") not in {"1", "1-1"}:
        del options["ntasks"]  # sbatch would take it for the total of tasks, and the other option for a limit
    options = flags.layered(options, asked_for)
    options["signal"] = warning.early(pod, asked_for, capacity).directive
    # The pod's directory is the third way to find a job's pod, and no flag can change it.
    options |= {"chdir": str(directory), "output": str(directory / "job.out"), "error": str(directory / "job.out")}
    return {**options, "no-requeue": None, "open-mode": "append"}
