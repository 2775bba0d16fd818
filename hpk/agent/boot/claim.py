"""The claim: the first job that starts a pod creates a file with its job ID; any other job exits.

A pod can have two jobs if sbatch's answer was lost, or if a job died before it reported and Slurm has forgotten it.
O_EXCL works between hosts, over NFS as well.
"""

from __future__ import annotations

import os


class Taken(Exception):
    """The pod is claimed; the text names the job.

    Attributes:
        job_id: The job that claimed it; empty if the file does not say.
    """

    def __init__(self, message: str, *, job_id: str) -> None:
        super().__init__(message)
        self.job_id = job_id


def take(path: str, job_id: str) -> None:
    """Claim the pod for this job.

    Raises:
        Taken: Another job, or this one, has claimed it.
        OSError: The file cannot be written.
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
