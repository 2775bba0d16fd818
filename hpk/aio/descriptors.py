"""The limit of open files: every agent on the line is one, and so is every session, log follower and watch."""

from __future__ import annotations

import resource

SPARE = 512
"""For all that is not an agent: requests to the API server, sessions, logs that are followed."""


def raise_limit() -> int:
    """Raise the soft limit to the hard one, and return that; children inherit it.

    Slurm hands on the soft limit of the shell from which the job was submitted, often 1024.
    """
    hard = hard_limit()
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def hard_limit() -> int:
    """Return the most files that this process may ever open."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[1]


def shortage(hard: int, *, max_pods: int) -> str:
    """Return why a hard limit is too low for as many pods, and what would help; empty if it is not."""
    needed = max_pods + SPARE
    if hard in (-1, resource.RLIM_INFINITY) or hard >= needed:
        return ""
    less = f", or set HPK_MAX_PODS={hard - SPARE}" if hard > SPARE else ""
    return (
        f"a process may open {hard} files (the hard limit of 'ulimit -n'), and {max_pods} pods (HPK_MAX_PODS) need "
        f"{needed}: have your site raise the limit{less}"
    )
