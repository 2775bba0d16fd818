"""A pod runs once: the first job that comes to it leaves its name, and any other goes away.

Two jobs can be made for a pod where sbatch's answer was lost, or where a job died before it said anything and
Slurm has forgotten it.  O_EXCL holds between hosts, over NFS as well.
"""

from __future__ import annotations

import os


class Taken(Exception):
    """There is a claim; the text says whose.

    Attributes:
        job_id: Of the job that made it; empty if it could not say.
    """

    def __init__(self, message: str, *, job_id: str) -> None:
        super().__init__(message)
        self.job_id = job_id


def take(path: str, job_id: str) -> None:
    """Make the claim for this job.

    Raises:
        Taken: There is one.
        OSError: It cannot be written.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        with open(path, encoding="ascii", errors="replace") as file:
            other = file.read()
        text = f"Job {other or 'another'} has run this pod, which runs only once: nothing to do for job {job_id}"
        raise Taken(text, job_id=other) from None
    os.write(descriptor, job_id.encode())
    os.close(descriptor)
