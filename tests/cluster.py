"""A running HPK on the simulated cluster, for tests, cases, the demo and benchmarks; stdlib only.

    python3 tests/cluster.py up      build what is missing, start the cluster, `hpk up` as alice on ctl
    python3 tests/cluster.py down    `hpk down`; the simulated cluster stays

`up` is idempotent: an HPK of the same image that runs is used as it is.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).parent.parent
if str(ROOT) not in sys.path:  # as a program, this finds its own folder only
    sys.path.insert(0, str(ROOT))

from tests.site.hpksite import layout  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Sequence

PROFILE = layout.PROFILES[os.environ.get("SITE_PROFILE") or "flannel"]
"""What the site has; its fields say what a test may expect."""
SITE = ROOT / "tests/site/site"
IMAGE = ROOT / "build/hpk.sif"
USER = "alice"
HOST = "ctl"
REGISTRY = "ctl:5000"
HPK = "/home/alice/.local/bin/hpk"
# Tests of faults have a registry of their own, and a port where none is.
SETTINGS = f'insecure_registries = ["{REGISTRY}", "{HOST}:5900", "{HOST}:5901"]\n'
# Where every job must name its account and time; pods inherit the account.
STRICT_SETTINGS = SETTINGS + 'flags = "--time=30"\n'
KUBECTL = ("kubectl",) if PROFILE.kubectl else (HPK, "kubectl")
# Images that are fetched on the login node where no other reaches the registry.
PULLED = ("busybox:1", "agnhost:2", "python:3", "layers:1", "alias/busybox:1", "multi:1", "bench:1")
ACCOUNT = "s/^##SBATCH --account=.*/#SBATCH --account=research/"


HANDSHAKES = 10
"""How often a busy machine may be too slow for one."""


class Failed(Exception):
    """A command ended with another code than was wanted; the text has its output."""


def run(
    *command: str,
    user: str = USER,
    host: str = HOST,
    stdin: bytes = b"",
    code: int | None = 0,
    seconds: float = 120,
) -> subprocess.CompletedProcess[bytes]:
    """Run a command on a host of the cluster; `code` None takes any exit code."""
    argv = [str(SITE), "run", "--user", user, host, "--", *command]
    done = subprocess.run(argv, input=stdin, capture_output=True, timeout=seconds, check=False)
    return checked(done, command, code)


def checked(
    done: subprocess.CompletedProcess[bytes], command: Sequence[str], code: int | None
) -> subprocess.CompletedProcess[bytes]:
    """Return how a command ended, if it is with the wanted exit code.

    Raises:
        Failed: It is not.
    """
    if code is not None and done.returncode != code:
        raise Failed(f"{' '.join(command)[:300]}: exit {done.returncode}\n{_tail(done.stdout)}\n{_tail(done.stderr)}")
    return done


def shell(text: str, **options: Any) -> str:
    """Run a line of shell on a host and return what it printed."""
    return run("bash", "-c", text, **options).stdout.decode(errors="replace")


def kubectl(*arguments: str, stdin: bytes = b"", code: int | None = 0, seconds: float = 400) -> str:
    """Kubectl as the user; its output.

    On a machine that is busy it gives a TLS handshake up after ten seconds; nothing has been asked then, so it is run
    again.
    """
    for _ in range(HANDSHAKES):
        done = run(*KUBECTL, *arguments, stdin=stdin, code=None, seconds=seconds)
        if done.returncode == 0 or b"TLS handshake timeout" not in done.stderr:
            break
    return checked(done, (*KUBECTL, *arguments), code).stdout.decode(errors="replace")


def get(kind: str, name: str = "", *arguments: str) -> dict[str, Any]:
    """An object, or a list of them, as JSON."""
    found: dict[str, Any] = json.loads(kubectl("get", kind, *([name] if name else []), "-o", "json", *arguments))
    return found


def up(*, is_quiet: bool = False) -> None:
    """Have HPK running, of the image that this checkout builds."""
    _local("scripts/build-image.sh", is_quiet=is_quiet)
    site_up(is_quiet=is_quiet)
    digest = fingerprint()
    if shell("cat ~/.hpk/installed 2>/dev/null; true").strip() != digest or not is_running():
        run(HPK, "down", code=None)
        install(digest)
        start()


def site_up(*, is_quiet: bool = False) -> None:
    """Start what does not run of the simulated cluster."""
    _local("tests/site/site", "up", is_quiet=is_quiet)


def fingerprint() -> str:
    """Return a digest of what an installation is made of."""
    return hashlib.sha256(IMAGE.read_bytes() + settings().encode()).hexdigest()


def settings() -> str:
    """Return the installation's config.toml."""
    return STRICT_SETTINGS if PROFILE.strict else SETTINGS


def is_running() -> bool:
    """Whether the node is Ready."""
    jsonpath = '{.status.conditions[?(@.type=="Ready")].status}'
    done = run(*KUBECTL, "get", "node", "hpk", "-o", f"jsonpath={jsonpath}", "--request-timeout=3s", code=None)
    return done.stdout == b"True"


def install(digest: str = "") -> None:
    """Put the image, the launcher and the sbatch script into the user's home, as the README tells a user to."""
    digest = digest or fingerprint()
    run("bash", "-c", "rm -f hpk.sif hpk.sbatch; cat > hpk.sif", stdin=IMAGE.read_bytes())
    run("apptainer", "run", "hpk.sif", "install")
    run(
        "bash",
        "-c",
        f"umask 077; mkdir -p .hpk; cat > .hpk/config.toml; echo {digest} > .hpk/installed",
        stdin=settings().encode(),
    )
    if PROFILE.strict:
        run("sed", "-i", ACCOUNT, "hpk.sbatch")
    if PROFILE.filtered:
        run(HPK, "pull", *(f"{REGISTRY}/{name}" for name in PULLED), seconds=300)


def start() -> None:
    """`hpk up`."""
    run(HPK, "up", seconds=180)


def stop(*arguments: str) -> None:
    """`hpk down`."""
    run(HPK, "down", *arguments, seconds=180)


def _local(*command: str, is_quiet: bool) -> None:
    output = subprocess.DEVNULL if is_quiet else sys.stderr
    environment = {**os.environ, "PWD": str(ROOT)}
    done = subprocess.run([str(ROOT / command[0]), *command[1:]], cwd=ROOT, stdout=output, env=environment, check=False)
    if done.returncode:
        raise Failed(f"{' '.join(command)}: exit {done.returncode}")


def _tail(data: bytes) -> str:
    return data.decode(errors="replace")[-3000:]


def main() -> None:
    """The command line."""
    try:
        match sys.argv[1:]:
            case ["up"]:
                up()
            case ["down"]:
                stop()
            case _:
                sys.exit(__doc__)
    except Failed as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
