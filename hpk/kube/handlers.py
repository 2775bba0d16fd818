"""Probes and hooks as given, without our defaults, for the agent."""

from __future__ import annotations

from hpk.kube.model import Model


class ExecAction(Model, frozen=True, kw_only=True, omit_defaults=True):
    command: list[str] = []


class HTTPHeader(Model, frozen=True, kw_only=True, omit_defaults=True):
    name: str
    value: str = ""


class HTTPGetAction(Model, frozen=True, kw_only=True, omit_defaults=True):
    port: int | str
    host: str = ""
    path: str = ""
    scheme: str = ""
    http_headers: list[HTTPHeader] = []


class TCPSocketAction(Model, frozen=True, kw_only=True, omit_defaults=True):
    port: int | str
    host: str = ""


class GRPCAction(Model, frozen=True, kw_only=True, omit_defaults=True):
    port: int
    service: str = ""


class SleepAction(Model, frozen=True, kw_only=True, omit_defaults=True):
    seconds: int


class Probe(Model, frozen=True, kw_only=True, omit_defaults=True):
    exec: ExecAction | None = None
    http_get: HTTPGetAction | None = None
    tcp_socket: TCPSocketAction | None = None
    grpc: GRPCAction | None = None
    initial_delay_seconds: int | None = None
    timeout_seconds: int | None = None
    period_seconds: int | None = None
    success_threshold: int | None = None
    failure_threshold: int | None = None
    termination_grace_period_seconds: int | None = None


class LifecycleHandler(Model, frozen=True, kw_only=True, omit_defaults=True):
    exec: ExecAction | None = None
    http_get: HTTPGetAction | None = None
    tcp_socket: TCPSocketAction | None = None
    sleep: SleepAction | None = None


class Lifecycle(Model, frozen=True, kw_only=True, omit_defaults=True):
    post_start: LifecycleHandler | None = None
    pre_stop: LifecycleHandler | None = None
    stop_signal: str = ""
