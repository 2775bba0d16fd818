"""``script.sh``: the job script; pure, and without secrets.

Slurm keeps every job's script and shows it to others, so it contains only paths and options.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import jinja2

from hpk.network import sandbox
from hpk.pods import translate, warning

if TYPE_CHECKING:
    from pathlib import Path

    from hpk.pods import admit
    from hpk.slurm import model as slurm_model

_ENVIRONMENT = jinja2.Environment(
    loader=jinja2.PackageLoader("hpk.pods", "templates"),
    undefined=jinja2.StrictUndefined,
    keep_trailing_newline=True,
    trim_blocks=True,
    lstrip_blocks=True,
    autoescape=False,  # noqa: S701 - shell, not HTML: every value goes through a quoting filter
)


def render(
    admitted: admit.Admitted,
    *,
    prelude: str,
    directory: Path,
    commands: sandbox.Commands,
    capacity: slurm_model.ClusterCapacity | None = None,
) -> str:
    """Return the text of the job script; the capacity must be the one used for the pod's plan."""
    directives = translate.directives(admitted, directory=directory, capacity=capacity)
    return _ENVIRONMENT.get_template("job.sh.j2").render(
        directives=[directive(name, value) for name, value in directives.items()],
        prelude=prelude,
        sandbox=commands.start,
        cleanup=commands.clean,
        scratch=commands.scratch,
        signals=warning.early(admitted.pod, admitted.options, capacity).signals,
        warmth=commands.warmth,
    )


def directive(name: str, value: str | None) -> str:
    """Return one ``#SBATCH`` line; sbatch parses its value with shell-like quoting (sbatch(1))."""
    dashed = f"--{name}"
    if value is None:
        return f"#SBATCH {dashed}"
    return f"#SBATCH {dashed}={_sbatch_quoted(value)}"


def _sbatch_quoted(value: str) -> str:
    r"""Quote a value for sbatch's line parser: double quotes, with ``\\`` before ``\\`` and ``"``."""
    plain = value.replace("\n", " ")
    if plain and all(c.isalnum() or c in "@%+=:,./_-" for c in plain):
        return plain
    return '"' + plain.replace("\\", "\\\\").replace('"', '\\"') + '"'


def shell_word(word: str) -> str:
    """Return a word of an argv for the job's shell, which expands the scratch directory, the job's facts, and WARM."""
    if word == sandbox.WARM:
        return word
    if "$HPK_SCRATCH" in word or word in sandbox.FACTS:
        return '"' + word.replace("\\", "\\\\").replace('"', '\\"').replace("`", "\\`") + '"'
    return shlex.quote(word)


_ENVIRONMENT.filters["word"] = shell_word
