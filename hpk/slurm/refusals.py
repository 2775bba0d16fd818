"""Slurm's error texts, divided into lasting and passing ones; pure.

The texts come from ``src/common/slurm_errno.c`` and ``src/sbatch`` (20.02 to 26.05). A text not listed as passing is
lasting: the passing ones are known, while a site's submit plugin may print anything.
"""

from __future__ import annotations

import re

RATE_LIMIT = re.compile(r"rate limit|RPC limit", re.IGNORECASE)
"""Texts of slurmctld's rate limit (rl_enable in slurm.conf)."""

LASTING = re.compile(r"\b(?:Assoc|QOS)M(?:ax|in)(?!Submit|Jobs)\w+")
"""slurmctld names the limit beside "Job violates accounting/QOS policy". A limit on the number of jobs or on a group's
usage passes; one on a single job's size or time (refused at once only with DenyOnLimit) does not."""

_PASSING_TEXTS = (
    r"SubmitJob\w*Limit",
    r"Job violates accounting/QOS policy",
    r"MaxJobCount limit reached",
    r"job queue full",
    r"temporarily (?:unable|disabled)",
    r"Unable to contact slurm controller",
    r"Unable to establish (?:controller|control) (?:machine|address)",
    r"Socket timed out",
    r"Zero Bytes were transmitted",
    r"Connection (?:refused|reset|timed out|rejected|forced closed)",
    r"Communication (?:connection|shutdown) failure",
    r"Message (?:send|receive) failure",
    r"Transport endpoint",
    r"Resource temporarily unavailable",
    r"Cannot allocate memory",
    r"No route to host|Network is (?:unreachable|down)|Host is down|No buffer space",
    r"Unexpected message received",
    r"Protocol authentication error",
    r"[Mm]unge",
    r"in standby mode",
    r"shutting down",
    r"Requested nodes are busy",
    r"Required ports are in use",
    r"Required node not available",
    r"Required partition not available",
    r"Requested partition configuration not available now",
    r"Licenses currently unavailable",
    r"Requested reservation (?:is in use|not usable now)",
    r"Requested operation is presently disabled",
    r"I/O error writing script",
    r"Error generating job credential",
    r"Slurm internal error",
    r"has breached requested QOS usage threshold",
    r"try again later|please retry",
    r"database connection|slurmdbd|accounting storage",
    r"Could not establish a configuration source|failed to fetch (?:remote )?config",
    r"Unable to connect to database",
    r"Partition in DOWN state",
    r"System submissions disabled",
    r"maintenance reservation",
    r"Max powered up nodes reached",
    r"Required nodes lack available resources",
    r"credential (?:expired|replayed)|credential is expired",
    r"delayed socket error",
    r"Too many open files|No space left on device",
)
PASSING = re.compile("|".join(_PASSING_TEXTS), re.IGNORECASE)

PERHAPS_DONE = re.compile(
    r"Socket timed out|Zero Bytes|receive failure|timed out|Connection reset|Unexpected message"
    r"|delayed socket error|shutdown failure|Transport endpoint|forced closed by quiesce|closing all communications"
    r"|credential (?:expired|replayed)|credential is expired|Munge decode failed",
    re.IGNORECASE,
)
"""The request was sent, and its answer is missing or unreadable: the job may exist."""


def is_passing(text: str) -> bool:
    """Return whether the same request may succeed later."""
    if RATE_LIMIT.search(text):
        return True
    if LASTING.search(text):
        return False
    return bool(PASSING.search(text))
