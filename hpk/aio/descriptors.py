"""The limit on open files: every connected agent needs one, and so does every session, log follower and watch."""

from __future__ import annotations

import resource

SPARE = 512
"""Descriptors for everything but agents: requests to the API server, sessions, log followers."""


def raise_limit() -> int:
    """Raise the soft limit to the hard one and return it; children inherit it.

    Slurm passes on the soft limit of the shell that submitted the job, often 1024.
    """
    hard = hard_limit()
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def hard_limit() -> int:
    """Return the hard limit on this process's open files."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[1]


def shortage(hard: int, *, max_pods: int) -> str:
    """Return why a hard limit is too low for that many pods, and a remedy; empty if it is enough."""
    needed = max_pods + SPARE
    if hard in (-1, resource.RLIM_INFINITY) or hard >= needed:
        return ""
    less = f", or set HPK_MAX_PODS={hard - SPARE}" if hard > SPARE else ""
    return (
        f"a process may open {hard} files (the hard limit of 'ulimit -n'), and {max_pods} pods (HPK_MAX_PODS) need "
        f"{needed}: have your site raise the limit{less}"
    )
