"""Authentication and authorization of kubelet requests, both delegated to the API server and cached.

A request is authenticated by its client certificate, or else by a bearer token through TokenReview; anonymous access is
off. A SubjectAccessReview then authorizes a subresource of our node.
Source: pkg/kubelet/server/auth.go and cmd/kubelet/app/auth.go of Kubernetes 1.37.
"""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from hpk import errors

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping

    from hpk.node import node

TOKEN_REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"  # noqa: S105 - a path
ACCESS_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
TOKEN_SECONDS = 120.0
ALLOW_SECONDS = 300.0
DENY_SECONDS = 30.0
MOST_REMEMBERED = 4096

VERBS = {"POST": "create", "GET": "get", "HEAD": "get", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
# Subresources that are checked before the coarse one.
FINE = {"/pods": "pods", "/runningpods": "pods", "/healthz": "healthz", "/configz": "configz"}
# Subresources that replace "proxy".
COARSE = {"/stats": "stats", "/metrics": "metrics", "/logs": "log", "/checkpoint": "checkpoint"}

Object = dict[str, Any]
Value = TypeVar("Value")


@dataclass(frozen=True, kw_only=True)
class UserInfo:
    """An authenticated user, as the API server identifies it."""

    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()


class Remembered(Generic[Value]):
    """A bounded cache with expiry. If it is full, the oldest entry is evicted."""

    def __init__(self, *, clock: Callable[[], float], most: int = MOST_REMEMBERED) -> None:
        self._clock, self._most = clock, most
        self._values: OrderedDict[Hashable, tuple[float, Value]] = OrderedDict()

    def get(self, key: Hashable) -> Value | None:
        """Return the value, or None if it is missing or expired."""
        until, value = self._values.get(key, (0.0, None))
        return value if self._clock() < until else None

    def put(self, key: Hashable, value: Value, *, seconds: float) -> None:
        """Store the value for the given time."""
        self._values[key] = (self._clock() + seconds, value)
        self._values.move_to_end(key)
        while len(self._values) > self._most:
            self._values.popitem(last=False)


def subresources(path: str) -> tuple[str, ...]:
    """Return the subresources of our node that allow a request to this path; any one of them suffices."""
    fine = [name for prefix, name in FINE.items() if _is_under(path, prefix)]
    coarse = next((name for prefix, name in COARSE.items() if _is_under(path, prefix)), "proxy")
    return (*fine, coarse)


def _is_under(path: str, prefix: str) -> bool:
    return path == prefix or path.startswith(f"{prefix}/")


def user_of_certificate(certificate: Mapping[str, Any] | None) -> UserInfo | None:
    """Return the user that a verified certificate names (CN; O for groups), or None if it names nobody.

    `certificate` is the result of :meth:`ssl.SSLSocket.getpeercert`: empty or None without a certificate.
    """
    pairs = [pair for rdn in (certificate or {}).get("subject", ()) for pair in rdn]
    name = next((value for key, value in pairs if key == "commonName"), "")
    if not name:
        return None
    return UserInfo(name=name, groups=_with_authenticated(value for key, value in pairs if key == "organizationName"))


def _with_authenticated(groups: Any) -> tuple[str, ...]:
    found = tuple(groups)
    return found if "system:authenticated" in found else (*found, "system:authenticated")


class Authenticator:
    """Authentication of requests."""

    def __init__(self, kube: node.Api, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._kube = kube
        self._tokens: Remembered[UserInfo | bool] = Remembered(clock=clock)

    async def user(self, *, certificate: Mapping[str, Any] | None, authorization: str) -> UserInfo | None:
        """Return the user, or None if the request is not authenticated.

        Raises:
            errors.HpkError: The API server cannot review the token.
        """
        user = user_of_certificate(certificate)
        if user is not None:
            return user
        scheme, _, token = authorization.strip().partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token:
            return None
        # Keep the token's hash instead of the token, which would stay in memory for minutes.
        key = hashlib.sha256(token.encode()).digest()
        known = self._tokens.get(key)
        if known is None:
            known = await self._review(token) or False
            self._tokens.put(key, known, seconds=TOKEN_SECONDS)
        return known if isinstance(known, UserInfo) else None

    async def _review(self, token: str) -> UserInfo | None:
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}}
        status = (await self._kube.create(TOKEN_REVIEWS, body)).get("status") or {}
        found = status.get("user") or {}
        if not status.get("authenticated") or not found.get("username"):
            return None
        extra = tuple((key, tuple(values)) for key, values in sorted((found.get("extra") or {}).items()))
        groups = _with_authenticated(found.get("groups") or ())
        return UserInfo(name=found["username"], uid=found.get("uid", ""), groups=groups, extra=extra)


class CannotAsk(errors.Retryable):
    """The API server could not be asked for authorization. The message is the kubelet's."""


class Authorizer:
    """Authorization of users for subresources of our node."""

    def __init__(self, kube: node.Api, node_name: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._kube, self._node = kube, node_name
        self._answers: Remembered[bool] = Remembered(clock=clock)

    async def refusal(self, user: UserInfo, *, method: str, path: str) -> str | None:
        """Return None if the user is allowed, else the text of the 403 response.

        Raises:
            CannotAsk: The API server does not answer.
        """
        verb = VERBS.get(method, "")
        names = subresources(path)
        for name in names:
            if await self._is_allowed(user, verb, name):
                return None
        listed = " ".join(names)
        return f"Forbidden (user={user.name}, verb={verb}, resource=nodes, subresource(s)=[{listed}])\n"

    async def _is_allowed(self, user: UserInfo, verb: str, subresource: str) -> bool:
        key = (user, verb, subresource)
        known = self._answers.get(key)
        if known is not None:
            return known
        try:
            answer = await self._kube.create(ACCESS_REVIEWS, self._question(user, verb, subresource))
        except errors.HpkError as error:
            raise CannotAsk(
                f"Authorization error (user={user.name}, verb={verb}, resource=nodes, subresource={subresource})"
            ) from error
        is_allowed = bool((answer.get("status") or {}).get("allowed"))
        self._answers.put(key, is_allowed, seconds=ALLOW_SECONDS if is_allowed else DENY_SECONDS)
        return is_allowed

    def _question(self, user: UserInfo, verb: str, subresource: str) -> Object:
        attributes = {
            "verb": verb,
            "version": "v1",
            "resource": "nodes",
            "subresource": subresource,
            "name": self._node,
        }
        spec: Object = {"user": user.name, "groups": list(user.groups), "resourceAttributes": attributes}
        if user.uid:
            spec["uid"] = user.uid
        if user.extra:
            spec["extra"] = {key: list(values) for key, values in user.extra}
        return {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
