"""What all containers of the pod share: addresses, host name, the pod's own files, volumes, images.

`PodSandbox.renew_volumes`, `PodSandbox.own_tmpfs` and `PodSandbox.close` run after the first container has started.
"""

from __future__ import annotations

import _socket
import os
import sys

from hpk import jobdir
from hpk.agent.boot import cgroup, etc, images, linux, volumes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hpk import records

_SHM_SIZE = "64m"  # containerd's


class JobFacts:
    """Facts that only the job knows: ``key=value`` arguments from the job script (hpk.network.sandbox)."""

    def __init__(self, arguments: list[str]) -> None:
        values = dict(argument.split("=", 1) for argument in arguments if "=" in argument)
        self.job_id = values.get("job_id", "")
        self.restart_count = int(values.get("restart_count") or 0)
        self.node = values.get("node", "")
        self.host_ip = values.get("host_ip", "")
        self.gpus = values.get("gpus", "")
        self.kill_wait_seconds = float(values.get("kill_wait") or 30)
        self.script_seconds = float(values.get("script_seconds") or 0)
        """How long the job script had run when it started the agent."""


class Places:
    """Directories inside the sandbox; a test has its own."""

    def __init__(
        self,
        *,
        pod: str = jobdir.SANDBOX_POD,
        images: str = jobdir.SANDBOX_IMAGES,
        endpoint: str = jobdir.SANDBOX_ENDPOINT,
        scratch: str = jobdir.SANDBOX_SCRATCH,
        host: str = jobdir.SANDBOX_HOST,
    ) -> None:
        self.pod = jobdir.PodDirectory(pod)
        self.images = images
        self.endpoint = os.path.join(endpoint, "endpoint.json")
        self.host = host
        self.scratch = scratch
        # A tmpfs: secrets are gone with the job, however it ends.
        self.private = os.path.join(scratch, "private")
        self.runtime = os.path.join(self.private, "crun")


class PodSandbox:
    """The pod's sandbox in this job."""

    def __init__(self, plan: records.PodPlan, facts: JobFacts, *, places: Places) -> None:
        self.plan = plan
        self.facts = facts
        self.places = places
        self.owns_network = plan["network"] != "host"
        self.has_one_id = plan.get("has_one_id", False)
        self.address = plan.get("address")
        self.pod_ip = self.address["ip"] if self.address else own_address()
        self.host_ip = facts.host_ip or ("" if self.owns_network else self.pod_ip)
        self.images = images.Images(os.path.join(places.scratch, "images"), source=places.images)
        self.volumes = volumes.Volumes(
            scratch=os.path.join(places.scratch, "volumes"),
            private=places.private,
            host=places.host,
            group=plan.get("fs_group"),
            has_one_id=self.has_one_id,
        )
        self.oom_score = 0
        self.cgroups: int | None = None
        """A descriptor of the node's cgroups of version 1, if they have been covered."""
        self.job: cgroup.MemoryCgroup | None = None
        """The job's memory cgroup, if it is visible."""
        self.pause = 0
        """The first process of the PID namespace that all containers share; 0 if they share none."""
        self.left_out: list[str] = []
        """Messages about DNS settings beyond a resolver's limits, for the pod's events."""

    def prepare(self) -> None:
        """Make everything but the volumes.

        Raises:
            OSError: The node cannot run a pod: no FUSE, no tmpfs, a full disk.
        """
        linux.adopt_orphans()
        if self.plan.get("share_processes"):
            from hpk.agent.boot import pause  # noqa: PLC0415 - rare

            self.pause = pause.begin()
        private = self.places.private
        os.makedirs(private, mode=0o700, exist_ok=True)
        linux.mount("tmpfs", private, "tmpfs", flags=linux.NO_SUID | linux.NO_DEVICES, options="mode=0700")
        for name in ("crun", "runs", "etc", "shm"):
            os.mkdir(os.path.join(private, name), 0o700)
        shm = os.path.join(private, "shm")
        flags = linux.NO_SUID | linux.NO_DEVICES | linux.NO_EXECUTE
        linux.mount("shm", shm, "tmpfs", flags=flags, options=f"mode=1777,size={_SHM_SIZE}")
        if self.has_one_id:
            self._mount_for_nested(private)
        for container in self.plan["containers"]:
            self.images.start(container["image_file"], offset=container["image_offset"])
        os.makedirs(os.path.join(self.places.scratch, "roots"), mode=0o755, exist_ok=True)
        self._set_kernel()
        self._write_etc()

    def _mount_for_nested(self, private: str) -> None:
        """Mount what a container in a nested user namespace cannot: it belongs to the pod's namespaces."""
        kinds = {"mqueue": "mqueue", "sys": "sysfs"} if self.owns_network else {"mqueue": "mqueue"}
        for name, kind in kinds.items():
            os.mkdir(path := os.path.join(private, name), 0o755)
            linux.mount(kind, path, kind, flags=linux.NO_SUID | linux.NO_DEVICES | linux.NO_EXECUTE)

    def make_volumes(self) -> None:
        """Make the pod's volumes.

        Raises:
            volumes.MountFailed: One cannot be made.
        """
        for volume in self.plan["volumes"]:
            self.volumes.make(volume)

    def renew_volumes(self, changed: list[records.Volume]) -> None:
        """Replace the files of changed volumes; a volume that cannot be replaced keeps its files."""
        for volume in changed:
            try:
                self.volumes.renew(volume)
            except (OSError, LookupError, ValueError) as error:
                print(f"Cannot renew volume {volume.get('name')}: {error}", flush=True)  # noqa: T201 - the job's output

    def fill(self, text: str) -> str:
        """Return the text with the addresses that only the job knows."""
        if "\0" not in text:
            return text
        return text.replace(jobdir.POD_IP, self.pod_ip).replace(jobdir.HOST_IP, self.host_ip)

    def etc(self, name: str) -> str:
        """Return the path of the pod's own ``hosts``, ``hostname`` or ``resolv.conf``."""
        return os.path.join(self.places.private, "etc", name)

    def _set_kernel(self) -> None:
        """Set the host name, open low ports, and show crun only cgroups that it accepts."""
        linux.set_hostname(self.plan["hostname"])
        if self.owns_network:
            # As under containerd, any user may bind port 80 and ping.
            _write_quietly("/proc/sys/net/ipv4/ip_unprivileged_port_start", "0")
            _write_quietly("/proc/sys/net/ipv4/ping_group_range", "0 0" if self.has_one_id else "0 65535")
        with open("/proc/self/oom_score_adj", encoding="ascii") as file:
            # The kernel must kill the agent last if memory runs out; raising is always allowed.
            self.oom_score = min(1000, int(file.read()) + 500)
        self._cover_cgroups(cgroup.read("/proc/self/mountinfo"))
        self.job = cgroup.own(covered=self.cgroups)

    def _cover_cgroups(self, mounts: str) -> None:
        """Hide from crun all cgroups but those of version 2.

        crun detects the version even if told to leave cgroups alone, and fails if both are mounted ("hybrid mode not
        supported"). A descriptor keeps what is covered within our own reach.
        """
        has_old = " - cgroup " in mounts
        if " /sys/fs/cgroup " in mounts and not has_old:
            return
        if has_old:
            self.cgroups = os.open(cgroup.MOUNTED, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        linux.mount("tmpfs", cgroup.MOUNTED, "tmpfs", options="mode=0755,size=0")

    def _write_etc(self) -> None:
        texts = {
            "hosts": etc.hosts(self.plan["hosts"], node=cgroup.read("/etc/hosts")),
            "hostname": self.plan["hostname"] + "\n",
            "resolv.conf": self._resolv_conf(),
        }
        for name, text in texts.items():
            with open(self.etc(name), "w", encoding="utf-8", errors="surrogateescape") as file:
                file.write(self.fill(text))
            os.chmod(self.etc(name), 0o644)

    def _resolv_conf(self) -> str:
        text = self.plan["resolv_conf"]
        if text is None:
            text = cgroup.read("/etc/resolv.conf")
            if self.address:
                text = reachable_servers(text, instead=self.address["gateway"])
        if added := self.plan.get("dns"):
            text, self.left_out = etc.resolv_conf(text, added)
        return text

    def own_tmpfs(self, container: records.ContainerPlan) -> tuple[str, ...]:
        """Return the tmpfs mounts that only this container can write to: their contents count as its memory."""
        own = []
        for volume in self.plan["volumes"]:
            users = [
                one for one in self.plan["containers"] if any(m["volume"] == volume["name"] for m in one["mounts"])
            ]
            if volume.get("medium") == "Memory" and users == [container]:
                own.append(self.volumes.directory(volume["name"]))
        if len(self.plan["containers"]) == 1:
            own.append(os.path.join(self.places.private, "shm"))
        return tuple(own)

    def close(self) -> None:
        """Unmount everything, and remove what is on scratch."""
        import shutil  # noqa: PLC0415 - not before the first container runs

        if self.pause:
            os.kill(self.pause, 9)
        self.volumes.close()
        self.images.close()
        for name in ("images", "roots", "volumes"):
            if os.path.isdir(path := os.path.join(self.places.scratch, name)):
                shutil.rmtree(path, onerror=_say)
        for name in ("shm", "mqueue", "sys"):
            if os.path.ismount(path := os.path.join(self.places.private, name)):
                images.unmount_quietly(path)
        for name in _names(os.path.join(self.places.private, "memory")):
            images.unmount_quietly(os.path.join(self.places.private, "memory", name))
        images.unmount_quietly(self.places.private)
        os.rmdir(self.places.private)


def own_address() -> str:
    """Return the address from which this network namespace sends; empty if it has only loopback.

    Nothing is sent: connecting a UDP socket only chooses the route.
    """
    family = _socket.socket(_socket.AF_INET, _socket.SOCK_DGRAM)
    try:
        family.connect(("192.0.2.1", 9))
        address: str = family.getsockname()[0]
    except OSError:
        return ""
    finally:
        family.close()
    return address


def reachable_servers(resolv_conf: str, *, instead: str) -> str:
    """Return a node's resolv.conf for a pod with its own loopback; ``instead`` leads to servers there."""
    lines = resolv_conf.splitlines(keepends=True)
    loopback = ("nameserver 127.", "nameserver ::1", "nameserver 0.")
    return "".join(f"nameserver {instead}\n" if line.startswith(loopback) else line for line in lines)


def _names(directory: str) -> list[str]:
    return os.listdir(directory) if os.path.isdir(directory) else []


def _write_quietly(path: str, text: str) -> None:
    try:
        with open(path, "w", encoding="ascii") as file:
            file.write(text)
    except OSError as error:
        print(f"Cannot set {path}: {error}", flush=True)  # noqa: T201 - the job's output is the log


def _say(_function: object, path: str, information: object) -> None:
    error = information[1] if isinstance(information, tuple) else information
    print(f"Cannot remove {path}: {error}", file=sys.stderr, flush=True)  # noqa: T201 - the job's output is the log
