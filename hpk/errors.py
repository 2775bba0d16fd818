"""Every error that crosses a room; the classes below :class:`HpkError` say what the caller does about it.

A message names the failed action, the reason and a remedy:
"Cannot submit pod a/b: sbatch: invalid partition 'gpuu' (known: cpu, gpu)".
"""

from __future__ import annotations


class HpkError(Exception):
    """The base of all; its text is for the user."""


class Retryable(HpkError):
    """Try again later; nothing is lost."""


class SlurmUnavailable(Retryable):
    """Slurm or the gateway does not answer, or asks us to slow down.

    Attributes:
        may_have_succeeded: Whether the request (a submission) may have been carried out all the same.
        limits_rate: Whether Slurm limits this user's rate of requests.
    """

    def __init__(self, message: str, *, may_have_succeeded: bool = False, limits_rate: bool = False) -> None:
        super().__init__(message)
        self.may_have_succeeded = may_have_succeeded
        self.limits_rate = limits_rate


class RegistryUnavailable(Retryable):
    """A registry does not answer."""


class ApiUnavailable(Retryable):
    """The API server does not answer."""


class AgentUnavailable(Retryable):
    """A pod's agent is not connected, does not answer, is too old, or has too much to do."""


class Rejected(HpkError):
    """The input cannot be honoured; trying again will not help."""


class JobRefused(Rejected):
    """Sbatch refused the job for good; the text is sbatch's own."""


class PodRefused(Rejected):
    """The pod requests something that cannot be given; ``reason`` is for its status, such as ``NodeAffinity``."""

    def __init__(self, message: str, *, reason: str = "UnsupportedField") -> None:
        super().__init__(message)
        self.reason = reason


class ImageRefused(Rejected):
    """An image's name, manifest or platform is wrong; ``reason`` is its container's, such as ``InvalidImageName``."""

    def __init__(self, message: str, *, reason: str = "ErrImagePull") -> None:
        super().__init__(message)
        self.reason = reason


class NotFound(HpkError):
    """The requested object does not exist."""


class Conflict(HpkError):
    """The object changed meanwhile, or exists already."""


class Fatal(HpkError):
    """The program cannot go on; the text says what to do."""
