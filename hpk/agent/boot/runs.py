"""One run of a container: its root file system, its OCI configuration, crun, and its output.

:func:`begin` returns when crun has been started. When crun has ended, the container's first process is our child and
waits; :func:`launch` lets it continue. In one step (``crun run --detach``) crun sometimes reaps a process that ends at
once, and its exit status is lost.
"""

from __future__ import annotations

import errno
import os
import time

from hpk import jobdir
from hpk.agent.boot import consoles, images, oci, processes, quickjson, securejoin, users

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from hpk import records
    from hpk.agent.boot import sandbox

CRUN = "/usr/bin/crun"
_LAUNCH_SECONDS = 2.0
_GPU_LIBRARIES = "/.singularity.d/libs"
_GPU_TOOLS = ("smi", "debugdump", "persistenced", "cuda-mps-control", "cuda-mps-server")


class ContainerRun:
    """A run of a container, from the start of crun."""

    def __init__(self, container: records.ContainerPlan, number: int, *, directory: str, root_directory: str) -> None:
        self.container = container
        self.number = number
        self.id = os.urandom(32).hex()
        self.directory = directory
        self.root_directory = root_directory
        self.begun = time.monotonic()
        self.starter = 0
        """crun's process; it ends when the container's first process exists, or cannot be made."""
        self.created: int | None = None
        """crun's raw status, if somebody has waited for it."""
        self.process_id = 0
        """The container's first process; 0 before its launch."""
        self.started_at = 0.0
        self.kills_before = 0
        """How many processes of the job the kernel had killed for lack of memory before the launch."""
        self.outputs: dict[str, int] = {}
        """Our ends of ``stdout`` and ``stderr``."""
        self.stdin: int | None = None
        """Our end of its input, if it has one, or of its terminal."""
        self.console: consoles.Console | None = None
        """The socket to which crun sends the terminal; :func:`launch` takes it."""
        self.held: list[int] = []
        """Descriptors of sub paths and namespaces, which crun opens below /proc/<our pid>/fd."""
        self.process: dict[str, Any] = {}
        """The OCI process, for exec: its user and environment."""
        self.shares_processes = False
        """Whether it is in another container's PID namespace; the kernel then kills nothing that it leaves."""
        self.mounts = ""
        """The mount namespace by which its processes are known, if it shares them."""

    @property
    def pid_file(self) -> str:
        """The file with the id of the container's first process, made when that exists."""
        return os.path.join(self.directory, "pid")

    @property
    def message_file(self) -> str:
        """The file that the container sees at its terminationMessagePath."""
        return os.path.join(self.directory, "message")

    @property
    def runtime_log(self) -> str:
        """The log of crun."""
        return os.path.join(self.directory, "crun.log")


def begin(
    box: sandbox.PodSandbox, container: records.ContainerPlan, number: int, *, neighbour: ContainerRun | None = None
) -> ContainerRun:
    """Start crun for a container; ``neighbour`` is the run whose processes it shares.

    Raises:
        OSError: The root file system or a mount cannot be made, or the neighbour has ended.
        LookupError: The image does not have the user, or the pod the volume.
        ValueError: It cannot share its neighbour's processes, or the kernel has no seccomp filters.
    """
    name = f"{container['name']}-{number}"
    run = ContainerRun(
        container,
        number,
        directory=os.path.join(box.places.private, "runs", name),
        root_directory=os.path.join(box.places.scratch, "roots", name),
    )
    try:
        _begin(box, run, neighbour)
    except BaseException:
        clean(run)
        raise
    return run


def _begin(box: sandbox.PodSandbox, run: ContainerRun, neighbour: ContainerRun | None) -> None:
    container = run.container
    lower = box.images.ready(container["image_file"], offset=container["image_offset"])
    root = images.make_writable(lower, run.root_directory)
    identity = users.identify(
        container["user"], passwd=securejoin.read(lower, "etc/passwd"), group=securejoin.read(lower, "etc/group")
    )
    if box.has_one_id:
        identity.groups = []  # there is only one
    os.mkdir(run.directory, 0o700)
    with open(run.message_file, "xb") as file:
        os.fchmod(file.fileno(), 0o666)
    configuration = oci.configuration(
        container,
        root=root,
        identity=identity,
        argv=[box.fill(word) for word in container["argv"]],
        env=_environment(box, container),
        binds=_binds(box, run),
        owns_network=box.owns_network,
        oom_score=box.oom_score,
        one_id=box.places.private if box.has_one_id else None,
        neighbour=_neighbour(box, run, neighbour),
        seccomp=_seccomp(container),
    )
    run.process = configuration["process"]
    text = quickjson.dumps(configuration).encode("utf-8", "surrogateescape")
    jobdir.write_bytes(os.path.join(run.directory, "config.json"), text, is_durable=False)
    _spawn(box, run)


def _seccomp(container: records.ContainerPlan) -> dict[str, Any] | None:
    """Return the filter that the container asks for, if any."""
    if container.get("seccomp_profile") != "RuntimeDefault":
        return None
    from hpk.agent.boot import seccomp  # noqa: PLC0415 - most pods do without

    return seccomp.runtime_default(oci.capabilities(container["add_capabilities"], container["drop_capabilities"]))


def _neighbour(box: sandbox.PodSandbox, run: ContainerRun, neighbour: ContainerRun | None) -> oci.Neighbour | None:
    """Return whose processes the run shares, if any.

    Descriptors hold the namespaces, because a process id may be used again.
    """
    if not box.pause and neighbour is None:
        return None
    run.shares_processes = True
    process, name, ids = box.pause, "the pod", (0, 0)
    if not box.pause and neighbour:
        user = neighbour.process["user"]
        process, name = neighbour.process_id, f"container {neighbour.container['name']}"
        ids = user["uid"], user["gid"]
    paths = {}
    for kind in ("pid", "user"):
        run.held.append(descriptor := os.open(f"/proc/{process}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC))
        paths[kind] = securejoin.path_of(descriptor)
    return oci.Neighbour(name, processes=paths["pid"], users=paths["user"], ids=ids)


def _spawn(box: sandbox.PodSandbox, run: ContainerRun) -> None:
    container = run.container
    argv = [CRUN, "--root", box.places.runtime, "--cgroup-manager=disabled", "--log", run.runtime_log]
    argv += ["create", "--bundle", run.directory, "--pid-file", run.pid_file]
    theirs: dict[int, int] = {}
    if container["tty"]:
        run.console = consoles.Console(box.places.private)
        argv += ["--console-socket", run.console.path]
        null = os.open("/dev/null", os.O_RDWR)
        theirs = {0: null, 1: null, 2: null}
    else:
        if container["stdin"]:
            theirs[0], run.stdin = os.pipe()
        else:
            theirs[0] = os.open("/dev/null", os.O_RDONLY)
        run.outputs["stdout"], theirs[1] = os.pipe()
        run.outputs["stderr"], theirs[2] = os.pipe()
    argv.append(run.id)
    try:
        run.starter = processes.spawn(argv, files=theirs)
    finally:
        for descriptor in set(theirs.values()):
            os.close(descriptor)


def launch(box: sandbox.PodSandbox, run: ContainerRun) -> None:
    """Let the process of a created container continue with the user's program.

    This is ``crun start`` without another program's start: the process waits for a byte in a FIFO, and crun takes the
    FIFO's absence to mean "running".

    Raises:
        OSError: The process is gone, or its terminal did not come.
    """
    if run.console:
        run.outputs["stdout"] = run.console.take()
        run.stdin = os.dup(run.outputs["stdout"])
        run.console.close()
        run.console = None
    with open(run.pid_file, encoding="ascii") as file:
        run.process_id = int(file.read())
    path = os.path.join(box.places.runtime, run.id, "exec.fifo")
    limit = time.monotonic() + _LAUNCH_SECONDS
    while True:
        try:
            fifo = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
            break
        except OSError as error:
            if error.errno != errno.ENXIO or time.monotonic() > limit:
                raise
            time.sleep(0.0005)  # it is about to wait there
    try:
        os.unlink(path)
        # Not later: it may run out of memory before the agent has imported its other modules.
        run.kills_before = box.job.kills() if box.job else 0
        if run.shares_processes:
            run.mounts = os.readlink(f"/proc/{run.process_id}/ns/mnt")
        run.started_at = time.time()
        os.write(fifo, b"\0")
    finally:
        os.close(fifo)


def exec_argv(
    box: sandbox.PodSandbox, run: ContainerRun, *, process_file: str, pid_file: str, console: consoles.Console | None
) -> list[str]:
    """Return the command that starts another process in a running container; ``process_file`` describes that."""
    argv = [CRUN, "--root", box.places.runtime, "--cgroup-manager=disabled", "--log", pid_file + ".log"]
    argv += ["exec", "--process", process_file, "--pid-file", pid_file]
    return [*argv, *(["--console-socket", console.path] if console else []), run.id]


def close_stdin(run: ContainerRun) -> None:
    """Close the container's input."""
    if run.stdin is not None:
        os.close(run.stdin)
        run.stdin = None


def clean(run: ContainerRun) -> None:
    """Remove the writable layer of a run that has ended; a restart begins with the image again."""
    import shutil  # noqa: PLC0415 - not before the first container runs

    close_stdin(run)
    if run.console:
        run.console.close()
    for descriptor in run.held:
        os.close(descriptor)
    run.held = []
    root = os.path.join(run.root_directory, "root")
    if os.path.ismount(root):
        images.unmount_quietly(root)
    shutil.rmtree(run.root_directory, ignore_errors=True)
    shutil.rmtree(run.directory, ignore_errors=True)


def _environment(box: sandbox.PodSandbox, container: records.ContainerPlan) -> list[list[str]]:
    env = [[name, box.fill(value)] for name, value in container["env"]]
    names = {name for name, _ in env}
    if "HOSTNAME" not in names:
        env.append(["HOSTNAME", box.plan["hostname"]])
    if container["gpu"]:
        if box.facts.gpus and "CUDA_VISIBLE_DEVICES" not in names:
            env.append(["CUDA_VISIBLE_DEVICES", box.facts.gpus])
        path = next((value for name, value in reversed(env) if name == "LD_LIBRARY_PATH"), "")
        env.append(["LD_LIBRARY_PATH", f"{_GPU_LIBRARIES}:{path}" if path else _GPU_LIBRARIES])
    return env


def _binds(box: sandbox.PodSandbox, run: ContainerRun) -> list[oci.Bind]:
    container = run.container
    binds = [
        oci.Bind(os.path.join(box.places.private, "shm"), "/dev/shm"),  # noqa: S108 - the container's
        oci.Bind(box.etc("hosts"), "/etc/hosts", read_only=container["read_only_root"]),
        oci.Bind(box.etc("hostname"), "/etc/hostname", read_only=container["read_only_root"]),
        oci.Bind(box.etc("resolv.conf"), "/etc/resolv.conf", read_only=container["read_only_root"]),
        oci.Bind(run.message_file, container["termination_message_path"] or "/dev/termination-log"),
    ]
    if container["gpu"]:
        binds += _gpu_binds()
    kinds = {volume["name"]: volume["kind"] for volume in box.plan["volumes"]}
    for mount in container["mounts"]:
        source, descriptor = box.volumes.source(mount, container=container["name"])
        if descriptor is not None:
            run.held.append(descriptor)
        read_only = mount["read_only"] or kinds[mount["volume"]] == "files"
        binds.append(oci.Bind(source, mount["path"], read_only=read_only))
    return binds


def _gpu_binds() -> list[oci.Bind]:
    """Return binds of what Apptainer's --nv has put into the sandbox."""
    devices = [f"/dev/{name}" for name in sorted(os.listdir("/dev")) if name.startswith("nvidia")]
    tools = [f"/usr/bin/nvidia-{name}" for name in _GPU_TOOLS]
    binds = [oci.Bind(path, path) for path in devices]
    return binds + [oci.Bind(path, path, read_only=True) for path in [_GPU_LIBRARIES, *tools] if os.path.exists(path)]
