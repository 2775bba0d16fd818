"""Startup, readiness and liveness probes, as in pkg/kubelet/prober."""

from __future__ import annotations

import asyncio
import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from hpk.agent.life import execs, httpget, supervise

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from hpk.agent.life import podcontext

AGENT = "kube-probe/1.37"
Kind = Literal["Startup", "Readiness", "Liveness"]


class ProbeTarget(execs.ExecTarget, Protocol):
    """A container that can be probed."""

    @property
    def is_running(self) -> bool:
        """Whether its process is alive."""

    @property
    def may_restart(self) -> bool:
        """Whether it would be restarted after being killed."""

    def set_started(self) -> None:
        """Record that the startup probe has passed, or that there is none."""

    def set_ready(self, is_ready: bool) -> None:  # noqa: FBT001 - a setter
        """Record the result of the readiness probe."""

    async def restart(self, why: str, *, grace_seconds: float | None = None) -> None:
        """Kill the process with grace; its restart policy decides what follows."""


@dataclass(frozen=True, kw_only=True)
class Timing:
    """A probe's numbers, with the API's defaults."""

    initial_delay_seconds: float
    timeout_seconds: float
    period_seconds: float
    success_threshold: int
    failure_threshold: int


def timing(probe: Mapping[str, Any]) -> Timing:
    """Return the numbers of a ``v1.Probe``."""
    return Timing(
        initial_delay_seconds=probe.get("initialDelaySeconds") or 0,
        timeout_seconds=probe.get("timeoutSeconds") or 1,
        period_seconds=probe.get("periodSeconds") or 10,
        success_threshold=probe.get("successThreshold") or 1,
        failure_threshold=probe.get("failureThreshold") or 3,
    )


class Verdict:
    """Counts equal results in a row until they reach a threshold; pure."""

    def __init__(self, numbers: Timing) -> None:
        self._numbers = numbers
        self._last: bool | None = None
        self._count = 0

    def add(self, is_success: bool) -> bool | None:  # noqa: FBT001 - the one thing that is counted
        """Return the probe's state after this result, or None if it is still undecided."""
        self._count = self._count + 1 if self._last is is_success else 1
        self._last = is_success
        needed = self._numbers.success_threshold if is_success else self._numbers.failure_threshold
        return is_success if self._count >= needed else None


async def watch(context: podcontext.PodContext, target: ProbeTarget) -> None:
    """Probe a container that has just started while it runs; cancelled when it ends."""
    plan = target.plan

    def faulted(why: str) -> None:
        context.reporter.event("Warning", "AgentFault", why, container=plan["name"])

    if startup := plan.get("startup_probe"):
        work = functools.partial(_startup, context, target, startup)
        if not await supervise.restarted(work, name="startup probe", on_fault=faulted):
            return
    elif plan["kind"] != "init":
        target.set_started()
    readiness, liveness = plan.get("readiness_probe"), plan.get("liveness_probe")
    if not readiness and plan["kind"] != "init":
        target.set_ready(True)
    async with asyncio.TaskGroup() as group:
        if readiness:
            asking = functools.partial(_readiness, context, target, readiness)
            group.create_task(supervise.restarted(asking, name="readiness probe", on_fault=faulted))
        if liveness:
            asking = functools.partial(_liveness, context, target, liveness)
            group.create_task(supervise.restarted(asking, name="liveness probe", on_fault=faulted))


async def _startup(context: podcontext.PodContext, target: ProbeTarget, probe: dict[str, Any]) -> bool:
    async for is_good in _states(context, target, probe, "Startup"):
        if is_good:
            target.set_started()
            return True
        await _kill(target, probe, "startup")
        return False
    return False


async def _readiness(context: podcontext.PodContext, target: ProbeTarget, probe: dict[str, Any]) -> None:
    async for is_good in _states(context, target, probe, "Readiness"):
        target.set_ready(is_good)


async def _liveness(context: podcontext.PodContext, target: ProbeTarget, probe: dict[str, Any]) -> None:
    async for is_good in _states(context, target, probe, "Liveness"):
        if not is_good and not context.is_stopping.is_set():
            await _kill(target, probe, "liveness")
            return


async def _kill(target: ProbeTarget, probe: dict[str, Any], word: str) -> None:
    name = target.plan["name"]
    text = f"Container {name} failed {word} probe"
    if target.may_restart:
        text += ", will be restarted"
    await target.restart(text, grace_seconds=probe.get("terminationGracePeriodSeconds"))


async def _states(
    context: podcontext.PodContext, target: ProbeTarget, probe: dict[str, Any], kind: Kind
) -> AsyncIterator[bool]:
    """Yield the probe's state whenever a threshold is reached."""
    numbers = timing(probe)
    verdict = Verdict(numbers)
    loop = asyncio.get_running_loop()
    next_at = loop.time() + numbers.initial_delay_seconds
    while True:
        await asyncio.sleep(max(0.0, next_at - loop.time()))
        next_at = max(next_at + numbers.period_seconds, loop.time())
        if kind != "Readiness" and context.is_stopping.is_set():
            return
        result = await _ask(context, target, probe, kind, numbers)
        if result is not None and (state := verdict.add(result)) is not None:
            yield state


async def _ask(
    context: podcontext.PodContext, target: ProbeTarget, probe: dict[str, Any], kind: Kind, numbers: Timing
) -> bool | None:
    """Probe once; return None if that was impossible, which counts neither way."""
    reporter, name = context.reporter, target.plan["name"]
    try:
        failure = await check(context, target, probe, timeout_seconds=numbers.timeout_seconds)
    except (execs.NotRunning, LookupError) as error:
        if target.is_running:
            text = f"{kind} probe errored and resulted in unknown state: {error}"
            reporter.event("Warning", "Unhealthy", text, container=name)
        return None
    except Exception as error:  # noqa: BLE001 - an unreadable answer is no success
        failure = supervise.fault(f"{kind.lower()} probe of container {name}", error)
    if failure is None:
        return True
    reporter.event("Warning", "Unhealthy", f"{kind} probe failed: {failure}", container=name)
    return False


async def check(  # noqa: PLR0911 - one return for each kind of probe
    context: podcontext.PodContext, target: ProbeTarget, probe: Mapping[str, Any], *, timeout_seconds: float
) -> str | None:
    """Probe once; return None on success, else what is wrong in the kubelet's words.

    Raises:
        execs.NotRunning: A command could not be started.
        LookupError: The probe names a port that the container does not have.
    """
    ports = target.plan.get("ports") or {}
    pod_ip = context.box.pod_ip
    try:
        if action := probe.get("exec"):
            command = list(action.get("command") or [])
            code, output = await execs.execute(context, target, command, timeout_seconds=timeout_seconds)
            return None if code == 0 else output
        async with asyncio.timeout(timeout_seconds):
            if action := probe.get("httpGet"):
                status, _ = await httpget.get(action, pod_ip=pod_ip, ports=ports, agent=AGENT)
                return None if 200 <= status < 400 else f"HTTP probe failed with statuscode: {status}"  # noqa: PLR2004
            if action := probe.get("tcpSocket"):
                port = httpget.resolve_port(action["port"], ports)
                _, writer = await httpget.connect(action.get("host") or pod_ip, port)
                writer.close()
                return None
            if action := probe.get("grpc"):
                return await _grpc(pod_ip, int(action["port"]), str(action.get("service") or ""))
    except httpget.Failed as error:
        return str(error)
    except TimeoutError:
        return _timed_out(probe, timeout_seconds, pod_ip)
    return None


def _timed_out(probe: Mapping[str, Any], seconds: float, pod_ip: str) -> str:
    if action := probe.get("exec"):
        return f"command timed out: {' '.join(action.get('command') or [])!r} timed out after {seconds:g}s"
    if action := probe.get("httpGet"):
        scheme = str(action.get("scheme") or "HTTP").lower()
        url = f"{scheme}://{action.get('host') or pod_ip}:{action['port']}{action.get('path') or '/'}"
        return f'Get "{url}": context deadline exceeded (Client.Timeout exceeded while awaiting headers)'
    if action := probe.get("tcpSocket"):
        return f"dial tcp {action.get('host') or pod_ip}:{action['port']}: i/o timeout"
    return f"timeout: failed to connect service within {seconds:g}s: context deadline exceeded"


async def _grpc(host: str, port: int, service: str) -> str | None:
    """Ask by grpc.health.v1; return None if it serves, else what is wrong (pkg/probe/grpc).

    On the wire its messages equal two well-known types: a string as field 1, and a number as field 1.
    """
    # heavy, and few pods have such a probe
    import grpc.aio  # noqa: PLC0415
    from google.protobuf import message, wrappers_pb2  # noqa: PLC0415

    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    async with grpc.aio.insecure_channel(address, options=[("grpc.primary_user_agent", AGENT)]) as channel:
        ask = channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=wrappers_pb2.StringValue.SerializeToString,
        )
        try:
            answer = await ask(wrappers_pb2.StringValue(value=service))
            status = wrappers_pb2.Int32Value.FromString(answer).value
        except grpc.aio.AioRpcError as error:
            if error.code() == grpc.StatusCode.UNIMPLEMENTED:
                lacks = "this server does not implement the grpc health protocol (grpc.health.v1.Health)"
                return f"error: {lacks}: {error.details()}"
            return f"error: health rpc probe failed: {error.details()}"
        except message.DecodeError as error:
            return f"error: health rpc probe failed: {error}"
    words = {0: "UNKNOWN", 1: "SERVING", 2: "NOT_SERVING", 3: "SERVICE_UNKNOWN"}
    if status == 1:
        return None
    return f"service unhealthy (responded with {words.get(status, str(status))!r})"
