"""postStart and preStop hooks (pkg/kubelet/lifecycle/handlers.go)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from hpk.agent.life import execs, httpget, supervise

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hpk.agent.life import podcontext

AGENT = "kube-lifecycle/1.37"


async def run(context: podcontext.PodContext, target: execs.ExecTarget, hook: Mapping[str, Any]) -> str:
    """Run a hook to its end; return why it failed, in the kubelet's words, or an empty string.

    It has no timeout: whoever stops the container cancels it.
    """
    name, pod_name = target.plan["name"], context.pod_name
    try:
        if action := hook.get("exec"):
            code, output = await execs.execute(context, target, list(action.get("command") or []))
            if code != 0:
                failure = f"command exited with {code}, message: {output!r}"
                return f"Exec lifecycle hook for Container {name!r} in Pod {pod_name!r} failed - error: {failure}"
        elif action := hook.get("httpGet"):
            ports = target.plan.get("ports") or {}
            await httpget.get(action, pod_ip=context.box.pod_ip, ports=ports, agent=AGENT)
        elif action := hook.get("sleep"):
            await asyncio.sleep(float(action.get("seconds") or 0))
        elif action := hook.get("tcpSocket"):
            port = httpget.resolve_port(action["port"], target.plan.get("ports") or {})
            _, writer = await httpget.connect(action.get("host") or context.box.pod_ip, port)
            writer.close()
    except Exception as error:  # noqa: BLE001 - a hook that cannot be run has failed, for whatever reason
        if not isinstance(error, (execs.NotRunning, httpget.Failed, LookupError, OSError)):
            supervise.fault(f"hook of container {name}", error)
        return f"lifecycle hook for Container {name!r} in Pod {pod_name!r} failed - error: {error}"
    return ""
