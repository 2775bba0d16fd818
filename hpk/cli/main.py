"""The options and help of every ``hpk`` command; each command's module is imported when it is called."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from hpk import config

RETRYABLE = 75
"""EX_TEMPFAIL: the same command may succeed later."""
INTERRUPTED = 130

app = typer.Typer(
    name="hpk",
    help="Kubernetes for Slurm users: a control plane in one Slurm job, pods as Slurm jobs.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> int:
    """Run the command line and return its exit code.

    0 is success, 1 an error, 2 wrong usage, 3 (``status``) not running, 75 an error that may pass, 130 Ctrl-C.
    """
    from hpk import errors  # noqa: PLC0415 - late, like all imports below: --help must be quick

    try:
        code: Any = app(standalone_mode=False)
        sys.stdout.flush()  # a failure at the interpreter's exit could not be reported
    except errors.Retryable as error:
        _say(str(error))
        return RETRYABLE
    except (errors.HpkError, BaseExceptionGroup) as error:
        return _say_all(error)
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except OSError as error:
        return _say_of_files(error)
    except Exception as error:
        # Typer's usage errors can print themselves.
        if callable(show := getattr(error, "show", None)):
            show()
            return int(getattr(error, "exit_code", 2))
        raise
    return code if isinstance(code, int) else 0


def _say(text: str) -> None:
    print(f"hpk: {text}", file=sys.stderr)


def _say_of_files(error: OSError) -> int:
    """Print a file system's refusal, such as a full home; raise any other error."""
    from hpk.controlplane import placement  # noqa: PLC0415

    if isinstance(error, BrokenPipeError):  # the reader of our output has gone; Typer uses the same code
        _give_up_output()
        return 1
    advice = placement.advice(error)
    if not advice and error.filename is None:
        raise error
    if error.filename is None:
        _give_up_output()  # standard output may be what failed
    where = f"{error.filename}: " if error.filename is not None else ""
    _say(f"Cannot go on: {where}{error.strerror}{advice}")
    return RETRYABLE if advice else 1


def _give_up_output() -> None:
    """Discard all further standard output, including what is buffered."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _say_all(error: BaseException) -> int:
    """Print the group's errors that are for users; raise it if it has others."""
    from hpk import errors  # noqa: PLC0415

    if isinstance(error, BaseExceptionGroup):
        ours, others = error.split(errors.HpkError)
        if others is not None:
            raise error
        for inner in ours.exceptions if ours else ():
            _say_all(inner)
    else:
        _say(str(error))
    return 1


def _settings(**flags: Any) -> config.Settings:
    from hpk import config  # noqa: PLC0415

    for line in config.strangers(os.environ):
        _say(line)
    return config.load(environment=os.environ, flags=flags)


def _run(command: Coroutine[Any, Any, int]) -> None:
    raise typer.Exit(asyncio.run(command))


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def up(
    context: typer.Context,
    *,
    script: Annotated[
        Path | None, typer.Option(help="The sbatch script. [default: ~/hpk.sbatch, else the one that came with hpk]")
    ] = None,
    wait: Annotated[bool, typer.Option(help="Wait until the node is Ready.")] = True,
) -> None:
    """Start the control plane as a Slurm job, and wait until the node is Ready.

    Further options go to sbatch: hpk up --partition=long --time=7-0
    """
    from hpk.cli import up as command  # noqa: PLC0415

    _run(command.run(_settings(), script=script, options=context.args, is_waiting=wait))


@app.command()
def status() -> None:
    """Show the control plane's job, the node, and the pods' jobs; exit code 3 if nothing runs."""
    from hpk.cli import status as command  # noqa: PLC0415

    _run(command.run(_settings()))


@app.command()
def down(
    *,
    keep_pods: Annotated[bool, typer.Option("--keep-pods", help="Leave the pods' jobs queued and running.")] = False,
) -> None:
    """Stop the control plane and the pods' jobs, and remove the context from the kubeconfig.

    The cluster's objects stay in the state directory; the next 'hpk up' brings them back.
    """
    from hpk.cli import down as command  # noqa: PLC0415

    _run(command.run(_settings(), is_keeping_pods=keep_pods))


@app.command()
def install(
    *,
    bin_directory: Annotated[Path, typer.Option("--bin", help="Directory of the launcher.")] = Path("~/.local/bin"),
    force: Annotated[bool, typer.Option("--force", help="Overwrite an sbatch script that you have edited.")] = False,
) -> None:
    """Put the launcher, the sbatch script and the image into your home.

    From the image itself: apptainer run hpk.sif install
    """
    from hpk.cli import install as command  # noqa: PLC0415

    raise typer.Exit(command.run(_settings(), bin_directory=bin_directory.expanduser(), is_forced=force))


@app.command()
def pull(
    images: Annotated[list[str], typer.Argument(metavar="IMAGE...", help="As in a pod's image: field.")],
    *,
    authfile: Annotated[
        Path | None, typer.Option(help="Docker config with credentials. [default: ~/.docker/config.json]")
    ] = None,
) -> None:
    """Pull and convert images before pods need them, on a host that can reach the registry."""
    from hpk.cli import pull as command  # noqa: PLC0415

    _run(command.run(_settings(), names=images, auth_file=authfile))


@app.command()
def prune(
    *,
    is_dry: Annotated[bool, typer.Option("--dry-run", help="Print what would be removed, and remove nothing.")] = False,
    also_pulled: Annotated[bool, typer.Option("--all", help="Also remove what 'hpk pull' has pulled.")] = False,
    is_json: Annotated[bool, typer.Option("--json", help="Print a JSON object instead of lines.")] = False,
) -> None:
    """Remove converted images that no pod of this control plane, or of another that shares them, uses.

    The control plane does so by itself when images fill images_gib, a setting in config.toml (HPK_IMAGES_GIB); see
    the README.
    """
    from hpk.cli import prune as command  # noqa: PLC0415

    raise typer.Exit(command.run(_settings(), is_dry=is_dry, is_json=is_json, also_pinned=also_pulled))


@app.command(
    add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False},
)
def kubectl() -> None:
    """Run the kubectl in hpk.sif, as in: hpk kubectl get pods."""
    from hpk.cli import kubectl as command  # noqa: PLC0415

    # Not context.args: a parser would drop the first "--".
    command.run(_settings(), sys.argv[sys.argv.index("kubectl") + 1 :])


@app.command()
def connect(
    *,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port on this host's loopback. [default: the API server's own]")
    ] = 0,
) -> None:
    """Hold a tunnel to the API server, for kubectl and other programs on hosts that cannot reach its port."""
    from hpk.cli import connect as command  # noqa: PLC0415

    _run(command.run(_settings(), port=port))


@app.command()
def doctor(
    *,
    wait: Annotated[float, typer.Option(metavar="SECONDS", help="How long a probe job may wait in the queue.")] = 120,
    is_json: Annotated[bool, typer.Option("--json", help="Print a JSON list instead of lines.")] = False,
) -> None:
    """Check this host, and each partition by one small job, for what pods need; exit code 1 if pods cannot run."""
    from hpk.cli import doctor as command  # noqa: PLC0415

    _run(command.run(_settings(), wait_seconds=wait, is_json=is_json))


@app.command()
def version() -> None:
    """Print the version."""
    import hpk  # noqa: PLC0415

    print(f"hpk {hpk.__version__}")


@app.command(hidden=True)
def serve() -> None:
    """Run the control plane and the kubelet here; hpk.sbatch calls this inside its container."""
    from hpk.cli import serve as command  # noqa: PLC0415

    raise typer.Exit(command.run(_settings))
