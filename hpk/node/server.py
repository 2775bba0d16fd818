"""The kubelet's HTTPS API: logs, pods, health, admission. Every path is authenticated and authorized.

ALPN offers only http/1.1, because exec, attach and port-forward (:mod:`hpk.node.streams`) upgrade the connection.
Source: pkg/kubelet/server/server.go of Kubernetes 1.37.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
import time
from typing import TYPE_CHECKING, Any, Self

import msgspec
import structlog
from aiohttp import web

from hpk import errors
from hpk.kube import admission
from hpk.node import auth, logquery, logs, metrics
from hpk.node.streams import routes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hpk import jobdir
    from hpk.link import sessions
    from hpk.node import podsource, webhook

LOG = structlog.get_logger(__name__)

IDLE_SECONDS = 90.0
GOODBYE_SECONDS = 1.0
"""How long a stop waits for requests in flight. Followed logs are cut at once."""
LONGEST_HEADER_BYTES = 64 << 10
"""aiohttp's default of 8 KiB is too short for some tokens."""
LONGEST_LINE_BYTES = 1 << 20
"""The request line holds a command's arguments. As much as Go's net/http accepts (DefaultMaxHeaderBytes)."""

LONGEST_BODY_BYTES = 8 << 20
"""The limit for reviews; the API server accepts objects of up to 3 MiB."""

Object = dict[str, Any]


def tls(*, certificate_pem: bytes, key_pem: bytes, client_ca_pem: bytes) -> ssl.SSLContext:
    """Return the server's TLS context. Client certificates are optional, but must be of the cluster's CA.

    Raises:
        errors.Fatal: A PEM text cannot be used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    context.verify_mode = ssl.CERT_OPTIONAL
    # A resumed session would skip the check of the client certificate.
    context.options |= ssl.OP_NO_TICKET
    context.num_tickets = 0
    try:
        # Python loads its own certificate only from a file. A memfd keeps the key off the disk.
        with os.fdopen(os.memfd_create("kubelet", os.MFD_CLOEXEC), "wb") as file:
            file.write(certificate_pem.rstrip() + b"\n" + key_pem)
            file.flush()
            context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")
        context.load_verify_locations(cadata=client_ca_pem.decode())
    except (OSError, ValueError) as error:
        raise errors.Fatal(f"Cannot use the certificate for the kubelet's API: {error}") from error
    return context


class KubeletServer:
    """The HTTPS server, serving while its context is entered."""

    def __init__(
        self,
        pods: podsource.PodSource,
        *,
        state: jobdir.StateDirectory,
        authenticator: auth.Authenticator,
        authorizer: auth.Authorizer,
        opener: sessions.SessionOpener,
        context: ssl.SSLContext,
        host: str,
        port: int,
        configuration: Mapping[str, Any] | None = None,
        reviews: webhook.AdmissionReviewer | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._pods, self._state, self._clock, self._reviews = pods, state, clock, reviews
        self._authenticator, self._authorizer = authenticator, authorizer
        self._context, self._host, self._port = context, host, port
        self._configuration = dict(configuration or {})
        self._metrics = metrics.registry(pods)
        self._streams = routes.Streams(pods, opener)
        self._runner: web.AppRunner | None = None
        self._following: set[asyncio.Task[Any]] = set()

    async def __aenter__(self) -> Self:
        """Start to listen.

        Raises:
            errors.Fatal: The address is not available.
        """
        runner = web.AppRunner(
            self._application(),
            access_log=None,
            handler_cancellation=True,  # a disconnect cancels the request's handler
            keepalive_timeout=IDLE_SECONDS,
            shutdown_timeout=GOODBYE_SECONDS,
            max_line_size=LONGEST_LINE_BYTES,
            max_field_size=LONGEST_HEADER_BYTES,
        )
        await runner.setup()
        try:
            await web.TCPSite(runner, self._host, self._port, ssl_context=self._context).start()
        except OSError as error:
            await runner.cleanup()
            raise errors.Fatal(f"Cannot serve the kubelet's API on {self._host}:{self._port}: {error}") from error
        self._runner = runner
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop: cut requests in flight, and tell sessions into pods why."""
        if self._runner is not None:
            await self._streams.close()
            for task in self._following:
                task.cancel()
            await self._runner.cleanup()
            self._runner = None

    @property
    def port(self) -> int:
        """The actual port, also if 0 was requested."""
        assert self._runner is not None
        return int(self._runner.addresses[0][1])

    async def run(self) -> None:
        """Serve until cancelled."""
        async with self:
            LOG.info("Serving the kubelet's API", host=self._host, port=self.port)
            await asyncio.get_running_loop().create_future()

    def _application(self) -> web.Application:
        app = web.Application(middlewares=[self._guard], client_max_size=LONGEST_BODY_BYTES)
        app.router.add_post(admission.PATH, self._review)
        for path, handler in (
            ("/containerLogs/{namespace}/{pod}/{container}", self._container_logs),
            ("/pods", self._all_pods),
            ("/pods/", self._all_pods),
            ("/runningpods", self._running_pods),
            ("/runningpods/", self._running_pods),
            ("/healthz", self._healthz),
            ("/configz", self._configz),
            ("/metrics", self._own_metrics),
        ):
            app.router.add_get(path, handler, allow_head=False)
        self._streams.add_to(app.router)
        return app

    @web.middleware
    async def _guard(self, request: web.Request, handler: Any) -> web.StreamResponse:
        """Authenticate and authorize every request, before even a 404."""
        refused = await self._refused(request)
        if refused is not None:
            return refused
        try:
            response: web.StreamResponse = await handler(request)
        except web.HTTPMethodNotAllowed as error:
            return web.Response(status=405, text="Method Not Allowed", headers={"Allow": error.headers["Allow"]})
        except web.HTTPNotFound:
            return web.Response(status=404, text="404: Page Not Found")
        return response

    async def _refused(self, request: web.Request) -> web.Response | None:
        """Return the response to an unauthorized request, or None."""
        certificate = request.transport.get_extra_info("peercert") if request.transport else None
        try:
            user = await self._authenticator.user(
                certificate=certificate, authorization=request.headers.get("Authorization", "")
            )
        except errors.HpkError as error:
            LOG.warning("Cannot authenticate a request", path=request.path, error=str(error))
            user = None
        if user is None:
            return web.Response(status=401, text="Unauthorized")
        try:
            refusal = await self._authorizer.refusal(user, method=request.method, path=request.path)
        except auth.CannotAsk as error:
            LOG.warning("Cannot authorize a request", path=request.path, error=str(error.__cause__))
            return web.Response(status=500, text=str(error))
        if refusal is not None:
            LOG.info("Refused a request", path=request.path, user=user.name)
            return web.Response(status=403, text=refusal)
        return None

    async def _container_logs(self, request: web.Request) -> web.StreamResponse:
        container = request.match_info["container"]
        try:
            query = logquery.decode(request.query, now=self._clock())
            pod = self._pod_with(container, request.match_info)
            path, count = await self._log_file(pod, container, is_previous=query.previous)
            if query.is_relative:
                query = query.moved(await logs.clock_ahead(self._state.pod(pod["metadata"]["uid"])))
        except logquery.BadQuery as error:
            return web.Response(status=error.code, text=str(error))
        except errors.NotFound as error:
            return web.Response(status=404, text=str(error))
        except errors.Rejected as error:
            return web.Response(status=400, text=str(error))
        if not query.follow:
            return await _send(request, path, query)
        follower = logs.Follower(self._pods, pod, container, count=count)
        task = asyncio.current_task()
        assert task is not None
        self._following.add(task)
        try:
            return await _send(request, path, query, follower=follower)
        finally:
            self._following.discard(task)

    def _pod_with(self, container: str, where: Mapping[str, str]) -> Object:
        """Return the pod that the path names, or raise errors.NotFound if there is no such pod or container."""
        name = where["pod"]
        pod = self._pods.find(where["namespace"], name)
        if pod is None:
            raise errors.NotFound(f'pod "{name}" does not exist')
        if logs.container_spec(pod, container) is None:
            raise errors.NotFound(f'container "{container}" not found in pod "{name}"')
        return pod

    async def _log_file(self, pod: Object, container: str, *, is_previous: bool) -> tuple[str, int]:
        """Return the log file and its restart count, or raise errors.Rejected if there is no such run."""
        run = logs.choose(pod, container, previous=is_previous)
        directory = self._state.pod(pod["metadata"]["uid"])
        paths = {directory.log(container, count): count for count in run.counts}
        path = await logs.find(list(paths))
        if path is None and run.refusal:
            raise errors.Rejected(run.refusal)
        path = path or next(iter(paths))
        return path, paths[path]

    async def _all_pods(self, _: web.Request) -> web.Response:
        return _json(_list(self._pods.pods()))

    async def _running_pods(self, _: web.Request) -> web.Response:
        return _json(_list(pod for pod in self._pods.pods() if _is_running(pod)))

    async def _review(self, request: web.Request) -> web.Response:
        """Answer an admission review. An internal error allows the object, since the worker validates it too."""
        try:
            asked = admission.question(await request.read())
        except ValueError as error:
            return web.Response(status=400, text=str(error))
        refusal, warnings = None, list[str]()
        if self._reviews is not None:
            try:
                refusal, warnings = self._reviews.review(asked.kind, asked.raw, old=asked.old, part=asked.part)
            except Exception as error:  # an error of our own code must not block an object
                LOG.exception("Cannot review an object, letting it pass", kind=asked.kind, error=repr(error))
        return web.Response(
            body=admission.answer(asked.uid, refusal=refusal, warnings=warnings), content_type="application/json"
        )

    async def _healthz(self, _: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def _configz(self, _: web.Request) -> web.Response:
        return _json({"kubeletconfig": self._configuration})

    async def _own_metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=metrics.text(self._metrics), headers={"Content-Type": metrics.CONTENT_TYPE})


async def _send(
    request: web.Request, path: str, query: logquery.Query, *, follower: logs.Follower | None = None
) -> web.StreamResponse:
    """Stream the log; each write waits until the client has read most of the bytes before."""
    response = web.StreamResponse(headers={"Content-Type": "text/plain"})
    await response.prepare(request)  # send the headers now: kubectl logs -f of a silent container must not wait
    try:
        async with contextlib.aclosing(logs.stream(path, query, follower=follower)) as blocks:
            async for block in blocks:
                await response.write(block)
    except OSError as error:
        if request.transport is None or request.transport.is_closing():
            return response  # the client disconnected
        # A clean end would make a partial log look complete, so break the connection.
        LOG.warning("Cannot read a log", path=path, error=str(error))
        request.transport.abort()
        return response
    await response.write_eof()
    return response


def _is_running(pod: Object) -> bool:
    statuses = (pod.get("status") or {}).get("containerStatuses") or []
    return any("running" in (status.get("state") or {}) for status in statuses)


def _list(pods: Any) -> Object:
    return {"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": list(pods)}


def _json(value: Object) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")
