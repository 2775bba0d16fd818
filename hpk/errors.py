"""Every error that crosses a room, classed by what the caller does about it.

::

    HpkError
    ├── Retryable            try again later, with a pause; nothing is lost
    │   ├── SlurmUnavailable     slurmctld or the gateway does not answer, or limits us
    │   ├── RegistryUnavailable  a registry does not answer
    │   ├── ApiUnavailable       the API server does not answer
    │   └── AgentUnavailable     a pod's agent cannot be asked for something now
    ├── Rejected             the input cannot be honoured; trying again will not help
    │   ├── JobRefused           sbatch refused the job for good
    │   ├── PodRefused           the pod asks for what cannot be given
    │   └── ImageRefused         the name, the manifest or the platform of an image is wrong
    ├── NotFound             what was asked for does not exist
    ├── Conflict             the object changed, or exists already
    └── Fatal                the program cannot go on; says what to do

A message names what could not be done, why, and what would help:
"Cannot submit pod a/b: sbatch: invalid partition 'gpuu' (known: cpu, gpu)".
"""

from __future__ import annotations


class HpkError(Exception):
    """The root of the tree; its text is fit for the user."""


class Retryable(HpkError):
    """Try again later; nothing is lost."""


class SlurmUnavailable(Retryable):
    """Slurm or the gateway does not answer, or asks us to slow down.

    Attributes:
        may_have_succeeded: Whether what was asked for (a submission) may have been done all the same.
        limits_rate: Whether Slurm said that this user asks too often.
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
    """A pod's agent is not on the line, does not answer, is too old, or has too much to do."""


class Rejected(HpkError):
    """The input cannot be honoured; trying again will not help."""


class JobRefused(Rejected):
    """Sbatch refused the job for good; the text is sbatch's own."""


class PodRefused(Rejected):
    """The pod asks for what cannot be given.

    Attributes:
        reason: CamelCase word for ``status.reason``, such as ``UnsupportedField`` or ``NodeAffinity``.
    """

    def __init__(self, message: str, *, reason: str = "UnsupportedField") -> None:
        super().__init__(message)
        self.reason = reason


class ImageRefused(Rejected):
    """An image's name, manifest or platform is wrong.

    Attributes:
        reason: The container's waiting reason: ``InvalidImageName``, ``ErrImagePull``, ``ErrImageNeverPull``.
    """

    def __init__(self, message: str, *, reason: str = "ErrImagePull") -> None:
        super().__init__(message)
        self.reason = reason


class NotFound(HpkError):
    """What was asked for does not exist."""


class Conflict(HpkError):
    """The object changed meanwhile, or exists already."""


class Fatal(HpkError):
    """The program cannot go on; the text says what to do."""
