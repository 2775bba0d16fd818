"""The renewal of a pod's service-account tokens from its submission on (ADR 0017).

While the job is queued, a token is renewed in ``spec.json``, which the agent reads when the job starts, so that the
start waits for nothing. While the agent is connected, the volume's files are sent over the link as well, which renews
the tokens of running pods and of those that started while no kubelet ran.
"""

from __future__ import annotations

import asyncio
import base64
import math
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from hpk import errors, jobdir

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from hpk import records
    from hpk.kube import v1
    from hpk.pods import services
    from hpk.volumes import sources

    Request = Callable[[v1.Pod, sources.TokenKey], Awaitable[sources.IssuedToken]]

LOG = structlog.get_logger(__name__)

TRY_AGAIN_SECONDS = 30.0
"""The pause after a failed renewal; a fifth of the token's life remains for retries."""


class Tokens:
    """The tokens of one pod. `advance` never waits; slow work runs beside the pod's rounds."""

    def __init__(self, uid: str, used: services.Services) -> None:
        self.uid, self._s = uid, used
        self._plan = used.state.pod(uid).plan
        self._due_at = 0.0
        self._is_in_hand = False
        self._renewals = 0
        self._is_closed = False
        self._told = (0, 0)  # the last stream on which files were sent, and their renewal

    def know(self, plan: records.PodPlan) -> None:
        """Remember the plan's tokens."""
        self._due_at = next_renewal(plan)
        self._renewals = plan.get("renewals", 0)

    def close(self) -> None:
        """Write no plan from now on: the pod is over, and its plan, with its secrets, is about to be removed."""
        self._is_closed = True

    def advance(self, pod: v1.Pod) -> float | None:
        """Start renewing the tokens that are due; return the seconds until the next check."""
        if self._is_in_hand:
            return None  # a round follows its end
        wait = self._due_at - self._s.clock.time()
        if wait <= 0 or (self._is_untold() and self._s.agents.is_connected(self.uid)):
            self._is_in_hand = True
            self._s.beside(self.uid, lambda: self._renew(pod))
            return None
        return None if math.isinf(wait) else wait

    def _is_untold(self) -> bool:
        """Return whether the connected agent may have read the plan before its last renewal, which it was not sent."""
        return self._renewals > 0 and self._told != (self._s.agents.dials(self.uid), self._renewals)

    async def _renew(self, pod: v1.Pod) -> None:
        self._due_at = self._s.clock.time() + TRY_AGAIN_SECONDS  # also after a bug of ours
        try:
            plan: records.PodPlan | None = await asyncio.to_thread(jobdir.read_json, self._plan)
            if plan is None or not any(files_with_tokens(plan)):
                self._due_at = math.inf
                return
            if await renew(plan, pod, request=self._s.preparer.token, now=self._s.clock.time()):
                await asyncio.to_thread(self._write, plan)
                LOG.info("Renewed a pod's tokens", pod=pod.where, uid=self.uid)
            self.know(plan)
            if self._is_untold() and self._s.agents.is_connected(self.uid):
                # An agent of an older version is not sent the files, and this stream counts as done like any other.
                self._told = (self._s.agents.dials(self.uid), self._renewals)
                self._s.agents.renew(self.uid, with_tokens(plan))
        except (errors.HpkError, OSError, ValueError) as error:
            LOG.warning("Cannot renew a pod's tokens, will try again", pod=pod.where, uid=self.uid, error=str(error))
            if isinstance(error, errors.Rejected | errors.NotFound):  # such as for a deleted service account
                message = f"Cannot renew the pod's service-account token, will try again: {error}"
                self._s.recorder.tell(pod, "Warning", "FailedMount", message)
        finally:
            self._is_in_hand = False

    def _write(self, plan: records.PodPlan) -> None:
        """Replace the plan unless it was removed meanwhile: a pod that is over keeps no secrets."""
        if not self._is_closed and Path(self._plan).exists():
            jobdir.write_json(self._plan, plan)
        if self._is_closed:
            Path(self._plan).unlink(missing_ok=True)  # removed while it was being written


def files_with_tokens(plan: records.PodPlan) -> Iterator[records.File]:
    """Yield the files that hold a token."""
    for volume in plan.get("volumes", []):
        yield from (file for file in volume.get("files", []) if "token" in file)


def with_tokens(plan: records.PodPlan) -> list[records.Volume]:
    """Return the volumes that hold a token."""
    return [volume for volume in plan.get("volumes", []) if any("token" in file for file in volume.get("files", []))]


def next_renewal(plan: records.PodPlan) -> float:
    """Return when the first token must be renewed, in Unix seconds."""
    return min((file["token"]["renew_at"] for file in files_with_tokens(plan)), default=math.inf)


async def renew(plan: records.PodPlan, pod: v1.Pod, *, request: Request, now: float) -> bool:
    """Replace the due tokens in the plan itself; return whether there were any.

    Raises:
        errors.HpkError: The API server is unreachable, or refuses.
    """
    fresh: dict[sources.TokenKey, sources.IssuedToken] = {}
    for file in files_with_tokens(plan):
        asked = file["token"]
        if asked["renew_at"] > now:
            continue
        key = (asked["audience"], asked["expiration_seconds"])
        if key not in fresh:
            fresh[key] = await request(pod, key)
        file["data"] = base64.b64encode(fresh[key].text.encode()).decode()
        asked["renew_at"] = fresh[key].renew_at
    plan["renewals"] = plan.get("renewals", 0) + bool(fresh)
    return bool(fresh)
