"""What the simulated cluster promises, each promise a test. Needs root; brings the cluster up if it is not."""

import resource
import statistics
import subprocess

import pytest

from tests.site import client
from tests.site.hpksite import cgroups

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("cluster"), pytest.mark.timeout(180)]
needs_cgroups = pytest.mark.skipif(not cgroups.are_lent(), reason="this machine lends no cgroups of version 1")

# Silent, since setuid Apptainer warns of a passwd file that it cannot see in --fakeroot's FUSE mount.
POD = "apptainer --silent exec --fakeroot --containall --net --network fakeroot /scratch/test-busybox.sif"


@pytest.fixture(scope="module")
def image() -> None:
    """The busybox image as /scratch/test-busybox.sif on both compute nodes."""
    for host in ("c1", "c2"):
        pull(host, "busybox:1", to="/scratch/test-busybox.sif")


def pull(host: str, name: str, *, to: str) -> None:
    """Convert one of the registry's images on a host."""
    command = ["env", "APPTAINER_NOHTTPS=1", "apptainer", "-q", "pull", "--force", to, f"docker://ctl:5000/{name}"]
    client.out(host, *command, seconds=150)


# site run -------------------------------------------------------------------------------------


def test_run_carries_input_outputs_and_exit_code() -> None:
    """Stdin arrives, stdout and stderr stay apart, the exit code is the command's."""
    done = client.run("c1", "sh", "-c", "cat; echo problem >&2; exit 7", stdin="two\nlines")
    assert (done.stdout, done.stderr, done.returncode) == ("two\nlines", "problem\n", 7)


def test_run_passes_arguments_byte_for_byte() -> None:
    """No shell reads the command's arguments."""
    odd = ["two  words", "$HOME", "'\"`", "", "--", "a\nb", "*"]
    code = "import sys; sys.stdout.write(repr(sys.argv[1:]))"
    assert client.out("ctl", "python3", "-c", code, *odd) == repr(odd)


def test_run_is_like_a_login() -> None:
    """The environment is a fresh login's, whatever the caller's is; the folder is the user's home."""
    argv = [str(client.SITE), "run", "--user", "alice", "c2", "--", "sh", "-c", "pwd; id -un; env"]
    done = subprocess.run(argv, capture_output=True, text=True, env={"PATH": "/usr/bin:/bin", "LEAK": "1"}, check=True)
    folder, user, *variables = done.stdout.splitlines()
    environment = dict(line.split("=", 1) for line in variables)
    assert (folder, user) == ("/home/alice", "alice")
    assert environment["HOME"] == "/home/alice"
    assert environment["USER"] == environment["LOGNAME"] == "alice"
    assert "/usr/bin" in environment["PATH"].split(":")
    assert set(environment) <= {"HOME", "USER", "LOGNAME", "SHELL", "PATH", "LANG", "TERM", "PWD"}


def test_run_says_what_is_wrong() -> None:
    """A host that is not there and a wrong command line have exit codes of their own."""
    assert client.site("run", "c9", "--", "true").returncode == 3
    assert client.site("run", "c1", "true").returncode == 2
    assert client.run("c1", "no-such-command").returncode == 127


def test_run_is_quick() -> None:
    """A command costs less than 50 ms of processor time (on a busy machine the clock says nothing)."""

    def spent() -> float:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    costs = []
    for _ in range(10):
        before = spent()
        client.run("ctl", "true")
        costs.append(spent() - before)
    assert statistics.median(costs) < 0.05, costs


def test_run_that_is_killed_leaves_no_command() -> None:
    """The command ends with its `site run`, as over a lost connection."""
    with client.started("c1", "sh", "-c", "echo ready; exec sleep 4242") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        assert client.run("c1", "pgrep", "-f", "sleep 4242").returncode == 0
    client.eventually(lambda: client.run("c1", "pgrep", "-f", "sleep 4242").returncode == 1, what="the command's end")


def test_a_login_shell_has_few_descriptors_and_hands_its_limits_on() -> None:
    """A soft limit of 1024 and a higher hard one: by `run`, by ssh, and in a job, to which Slurm hands them on."""
    ask = "ulimit -Sn; ulimit -Hn"
    soft, hard = client.out("ctl", "sh", "-c", ask).split()
    assert soft == "1024"
    assert int(hard) > 4096
    assert client.out("ctl", "ssh", "c1", ask).split() == [soft, hard]
    assert client.finished(client.submit(ask)).split() == [soft, hard]
    assert client.out("ctl", "bash", "-c", "ulimit -Su 4321; srun bash -c 'ulimit -Su'") == "4321"


# Hosts ----------------------------------------------------------------------------------------


def test_status_says_healthy() -> None:
    """Status lists every host and ends with the verdict."""
    done = client.site("status")
    assert done.returncode == 0, done.stdout
    assert done.stdout.endswith("profile flannel: up and healthy\n")
    assert {line.split()[0] for line in done.stdout.splitlines()} >= {"ctl", "c1", "c2"}


def test_up_is_idempotent() -> None:
    """A second up changes nothing: what runs on the hosts lives on."""
    with client.started("c1", "sh", "-c", "echo ready; exec sleep 4243") as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert client.site("up").returncode == 0
        assert process.poll() is None


def test_up_starts_a_dead_daemon_again() -> None:
    """A daemon that was killed is back after up."""
    client.out("c1", "sh", "-c", "kill -9 $(cat /run/site/munged.pid)", user="root")
    client.eventually(lambda: client.site("status").returncode == 1, what="status to notice")
    assert client.site("up").returncode == 0
    assert client.site("status").returncode == 0


def test_hosts_do_not_see_each_other() -> None:
    """Processes, /tmp and /scratch are a host's own."""
    with client.started("c1", "sh", "-c", "touch /tmp/mine /scratch/mine; echo ready; exec sleep 4244") as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert client.run("c1", "pgrep", "-f", "sleep 4244").returncode == 0
        assert client.run("c2", "pgrep", "-f", "sleep 4244").returncode == 1
        assert client.run("c2", "ls", "/tmp/mine", "/scratch/mine").returncode != 0
    assert client.out("c2", "hostname") == "c2"


def test_users_log_in_from_host_to_host() -> None:
    """By ssh without a password, each as himself only."""
    for host in ("ctl", "c1", "c2"):
        assert client.out("ctl", "ssh", host, "hostname; id -un", user="alice") == f"{host}\nalice"
    refused = client.run("ctl", "ssh", "-o", "BatchMode=yes", "alice@c1", "true", user="bob")
    assert (refused.returncode, "Permission denied" in refused.stderr) == (255, True)


def test_node_local_folders_are_on_a_disk() -> None:
    """Overlays and emptyDirs may lie on /tmp and /scratch: neither is a tmpfs or an overlay."""
    kinds = client.out("c1", "stat", "-f", "-c", "%T", "/tmp", "/scratch").split()
    assert not set(kinds) & {"tmpfs", "overlayfs"}


def test_home_is_shared_and_private() -> None:
    """What alice writes on c1 she reads on c2; bob does not."""
    client.out("c1", "sh", "-c", "echo secret >shared-file")
    assert client.out("c2", "cat", "shared-file") == "secret"
    assert "Permission denied" in client.run("c2", "cat", "/home/alice/shared-file", user="bob").stderr
    assert client.out("ctl", "stat", "-c", "%a %U", "/home/alice", "/home/bob", user="root") == "700 alice\n700 bob"


def test_nothing_outside_is_reached() -> None:
    """Other networks are unreachable at once, and the machine itself has no address of the cluster's."""
    done = client.run("c1", "ping", "-c", "1", "-W", "30", "192.0.2.1", user="root")
    assert done.returncode != 0
    assert "Unreachable" in done.stdout
    assert client.run("c1", "getent", "hosts", "name.example").returncode == 2
    addresses = subprocess.run(["ip", "-o", "addr"], capture_output=True, text=True, check=True).stdout
    assert "10.77.0." not in addresses
    assert "10.244." not in addresses


def test_users_may_use_fuse_and_tun() -> None:
    """Both devices open for an ordinary user."""
    client.out("c1", "python3", "-c", "open('/dev/fuse', 'r+b', 0); open('/dev/net/tun', 'r+b', 0)")


def test_programs_are_on_the_path() -> None:
    """Every host has what scripts of users and tests call."""
    for host in ("ctl", "c1", "c2"):
        commands = "sbatch squeue sinfo scancel scontrol sacct sdiag apptainer kubectl curl jq python3 iperf3 nft"
        client.out(host, "sh", "-c", f"PATH=$PATH:/usr/sbin; for c in {commands}; do command -v $c; done")
        client.out(host, "python3", "-c", "import yaml")
    assert "v1.37.2" in client.out("ctl", "kubectl", "version", "--client")


# Slurm ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "host"),
    [
        (("--nodelist=c1",), "c1"),
        (("--nodelist=c2",), "c2"),
        (("--partition=service",), "ctl"),
        (("--partition=gpu",), "c2"),
    ],
)
def test_jobs_run_where_they_should(flags: tuple[str, ...], host: str) -> None:
    """A job runs on the named node or partition, as its user, and sacct knows it."""
    job = client.submit("hostname; id -un; pwd", *flags)
    assert client.finished(job) == f"{host}\nalice\n/home/alice\n"

    def accounted() -> str | None:
        line = client.out("ctl", "sacct", "-nXP", "-j", job, "--format=State,Account,NodeList,ExitCode")
        return line if line.startswith("COMPLETED") else None

    line = client.eventually(accounted, what="sacct to know the job")
    assert line == f"COMPLETED|research|{host}|0:0"


def test_many_jobs_run_at_once() -> None:
    """Forty one-CPU jobs with the default memory run side by side on two nodes of 32."""
    jobs = [client.submit("sleep 300") for _ in range(40)]
    try:
        client.eventually(
            lambda: client.out("ctl", "squeue", "-h", "-t", "R", "-j", ",".join(jobs)).count("\n") == 39,
            what="forty running jobs",
            seconds=60,
        )
    finally:
        client.out("ctl", "scancel", *jobs)
    assert {client.end(job) for job in jobs} == {"CANCELLED"}


def test_job_script_can_be_read_back() -> None:
    """Scontrol writes the batch script of a queued job."""
    job = client.submit("echo the script", "--hold")
    try:
        assert "echo the script" in client.out("ctl", "scontrol", "write", "batch_script", job, "-")
        assert "JobState=PENDING" in client.out("ctl", "scontrol", "show", "job", job)
        assert "Jobs submitted" in client.out("ctl", "sdiag")
    finally:
        client.out("ctl", "scancel", job)


@needs_cgroups
def test_the_kernel_keeps_a_jobs_memory() -> None:
    """A job that takes more than its memory is killed, and Slurm says why."""
    eat = "python3 -c 'import time\nx = b\"x\" * 300_000_000\ntime.sleep(60)'"
    job = client.submit(eat, "--mem=100", "--nodelist=c1")
    assert client.end(job) == "OUT_OF_MEMORY"
    words = client.out("ctl", "scontrol", "-o", "show", "job", job)
    assert "Reason=OutOfMemory" in words
    assert "ExitCode=0:125" in words
    assert "Detected 1 oom_kill event in StepId" in client.output(job)


@needs_cgroups
def test_what_leaves_a_jobs_tree_dies_with_it() -> None:
    """Slurm knows a job's processes by their cgroup, which is the host's own; whoever is their parent."""
    leave = "setsid --fork sleep 4246; grep -E 'freezer|memory' /proc/self/cgroup; pgrep -f 'sleep 4246' >/dev/null"
    job = client.submit(leave, "--nodelist=c1")
    words = client.finished(job).splitlines()
    step = f"/slurm_c1/uid_2000/job_{job}/step_batch"
    assert {line.split(":")[1] for line in words} == {"freezer", "memory"}
    assert all(line.split(":")[2].startswith(step) for line in words), words
    client.eventually(lambda: client.run("c1", "pgrep", "-f", "sleep 4246").returncode == 1, what="the process's end")


OPEN = """
import errno, os
for name in ("null", "nvidia0", "nvidia1"):
    try:
        os.close(os.open("/dev/" + name, os.O_RDWR))
        print(name, "opened")
    except OSError as error:
        print(name, errno.errorcode[error.errno])
"""


def test_gpus_are_handed_out() -> None:
    """Jobs get the GPUs they ask for, never the same one twice; more than there are is refused."""
    script = "echo $SLURM_JOB_GPUS $CUDA_VISIBLE_DEVICES; ls /dev/nvidia[0-9]"
    assert client.finished(client.submit(script, "--gres=gpu:2")) == "0,1 0,1\n/dev/nvidia0\n/dev/nvidia1\n"
    first = client.submit("echo $SLURM_JOB_GPUS; sleep 300", "--gres=gpu:1")
    client.eventually(lambda: client.output(first), what="the first GPU job")
    second = client.finished(client.submit(f"echo $SLURM_JOB_GPUS\npython3 -c '{OPEN}'", "--gres=gpu:1"))
    client.out("ctl", "scancel", first)
    mine, *opened = second.splitlines()
    assert {client.output(first).splitlines()[0], mine} == {"0", "1"}
    if cgroups.are_lent():  # no driver is behind the one that it has
        denied = [f"nvidia{number} {'ENXIO' if str(number) == mine else 'EPERM'}" for number in (0, 1)]
        assert opened == ["null opened", *denied]
    refused = client.run("ctl", "sbatch", "--gres=gpu:3", "--wrap", "true")
    assert "Requested node configuration is not available" in refused.stderr


# Apptainer and the pod network ----------------------------------------------------------------


@pytest.mark.usefixtures("image")
def test_pods_have_addresses_and_reach_each_other() -> None:
    """In jobs of alice on both nodes, --fakeroot --net gives flannel addresses that meet."""
    listener = client.submit(
        f"exec {POD} sh -c 'ip -4 -o addr show eth0; nc -l -p 7777 -e cat'", "--nodelist=c2", "--time=2"
    )
    try:
        line = client.eventually(lambda: client.output(listener), what="c2's pod")
        address = line.split()[3].split("/")[0]
        assert address.startswith("10.244.")
        script = (
            f"{POD} sh -c 'ip -4 -o addr show eth0; ping -c 1 -W 5 {address} && ping -c 1 -W 5 10.77.0.1 && "
            f"echo hello | nc -w 5 {address} 7777'"
        )
        text = client.finished(client.submit(script, "--nodelist=c1"))
    finally:
        client.out("ctl", "scancel", listener)
    assert "10.244." in text.splitlines()[0]
    assert text.count(" 0% packet loss") == 2
    assert text.endswith("hello\n")


@pytest.mark.usefixtures("image")
def test_killed_pods_give_their_addresses_back() -> None:
    """A pod whose every process is killed at once leaves no address taken and no FUSE server running."""
    job = client.submit(f"exec {POD} sh -c 'ip -4 -o addr show eth0; exec sleep 300'", "--nodelist=c2")
    line = client.eventually(lambda: client.output(job), what="the pod")
    taken = f"/var/lib/cni/networks/fakeroot/{line.split()[3].split('/')[0]}"
    client.out("c2", "test", "-e", taken, user="root")
    client.out("ctl", "scancel", "--full", "--signal=KILL", job)
    client.end(job)
    client.eventually(lambda: client.run("c2", "test", "-e", taken, user="root").returncode == 1, what="its release")
    assert client.run("c2", "pgrep", "-P", "1", "-x", "squashfuse_ll", user="root").returncode == 1


@pytest.mark.usefixtures("image")
def test_a_pod_may_set_rules_in_its_own_network() -> None:
    """In the sandbox, alice's root may add addresses: she owns the network namespace."""
    text = client.out("c1", "sh", "-c", f"{POD} sh -c 'id -u; ip addr add 10.96.0.1/32 dev lo; ip addr show lo'")
    assert text.startswith("0\n")
    assert "10.96.0.1" in text


# Registry -------------------------------------------------------------------------------------


def test_registry_serves_the_images() -> None:
    """The catalogue is the list in README.md."""
    names = client.out("c2", "sh", "-c", "curl -fsS http://ctl:5000/v2/_catalog | jq -r .repositories[]").split()
    assert set(names) >= {"busybox", "agnhost", "alias/busybox", "python", "layers", "multi"}


def config_of(name: str, kind: str) -> str:
    """Return the `config` of an image as compact JSON, read from the registry by its manifest's media type."""
    repository, _, tag = name.partition(":")
    script = f"""
        base=http://ctl:5000/v2/{repository}
        digest=$(curl -fsS -H 'Accept: {kind}' $base/manifests/{tag} | jq -r .config.digest)
        curl -fsSL $base/blobs/$digest | jq -Sc .config
    """
    return client.out("ctl", "sh", "-euc", script)


def test_images_say_what_they_run() -> None:
    """Busybox has a command and no entry point, agnhost both; the alias is agnhost under busybox's name."""
    oci = "application/vnd.oci.image.manifest.v1+json"
    busybox, agnhost = config_of("busybox:1", oci), config_of("agnhost:2", oci)
    assert '"Cmd":["sh"]' in busybox
    assert "Entrypoint" not in busybox
    assert "User" not in busybox
    assert '"Cmd":["pause"]' in agnhost
    assert '"Entrypoint":["/agnhost"]' in agnhost
    assert config_of("alias/busybox:1", oci) == agnhost


@pytest.mark.usefixtures("image")
def test_busybox_has_every_applet() -> None:
    """Each applet is there, busybox itself is no link, and /tmp is open to all."""
    script = "for a in $(busybox --list); do [ -e /bin/$a ] || echo missing $a; done; [ -L /bin/busybox ] || echo real"
    base = ["apptainer", "-q", "exec", "--contain", "/scratch/test-busybox.sif"]
    assert client.out("c1", *base, "sh", "-c", script) == "real"
    listing = client.out("c1", "sh", "-c", "unsquashfs -o $(apptainer sif list /scratch/test-busybox.sif"
                         " | awk '/FS/ {split($0, f, \"|\"); split(f[4], o, \"-\"); print o[1]}')"
                         " -ll /scratch/test-busybox.sif tmp | grep ' squashfs-root/tmp$'")  # fmt: skip
    assert listing.startswith("drwxrwxrwt")


def test_python_image_runs() -> None:
    """The Python image has its standard library and a shell."""
    pull("c1", "python:3", to="/scratch/test-python.sif")
    code = "import asyncio, ctypes, json, lzma, sqlite3, ssl; print('fine')"
    command = ["apptainer", "-q", "exec", "--containall", "/scratch/test-python.sif"]
    assert client.out("c1", *command, "sh", "-c", f'python3 -c "{code}"') == "fine"


def test_benchmarks_are_the_hosts_own_files() -> None:
    """A comparison of a pod with a plain job compares nothing else; and they run in the image."""
    pull("c1", "bench:1", to="/scratch/test-bench.sif")
    look = "sha256sum /usr/bin/sysbench /usr/bin/fio /usr/bin/socat /usr/local/bin/stream"
    command = ["apptainer", "-q", "exec", "--containall", "/scratch/test-bench.sif", "sh", "-c"]
    assert client.out("c1", *command, look) == client.out("c1", "sh", "-c", look)
    client.out("c1", *command, "sysbench --version && fio --version && stream 0 1")


def test_layers_image_is_a_hard_one() -> None:
    """Whiteouts, opaque folders, replaced files and hard links come out as README.md says."""
    pull("c1", "layers:1", to="/scratch/test-layers.sif")
    command = ["apptainer", "-q", "exec", "--containall", "/scratch/test-layers.sif"]
    assert client.out("c1", *command, "ls", "/stuff", "/stuff/opaque").split() == [
        "/stuff:", "kept", "kept-too", "opaque", "private", "replaced", "/stuff/opaque:", "new",
    ]  # fmt: skip
    assert client.out("c1", *command, "cat", "/stuff/replaced") == "upper"
    config = config_of("layers:1", "application/vnd.docker.distribution.manifest.v2+json")
    assert '"User":"1000:1000"' in config
    assert '"SPACES=two  words "' in config


def test_multi_image_is_an_index() -> None:
    """Of the index, this machine's architecture is taken."""
    pull("c1", "multi:1", to="/scratch/test-multi.sif")
    client.out("c1", "apptainer", "-q", "exec", "--containall", "/scratch/test-multi.sif", "test", "-x", "/bin/busybox")
