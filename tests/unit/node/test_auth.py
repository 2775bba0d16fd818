"""Who may ask the kubelet what."""

from __future__ import annotations

from typing import Any

import pytest

from hpk import errors
from hpk.node import auth
from tests.fakes import kube

CERTIFICATE = {
    "subject": ((("organizationName", "system:masters"),), (("organizationName", "x"),), (("commonName", "apiserver"),))
}
USER = auth.UserInfo(name="u", groups=("g",))


class Clock:
    """A clock that a test moves."""

    now = 0.0

    def __call__(self) -> float:
        """Tell the time."""
        return self.now


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/pods", ("pods", "proxy")),
        ("/pods/", ("pods", "proxy")),
        ("/podsome", ("proxy",)),
        ("/runningpods/", ("pods", "proxy")),
        ("/healthz", ("healthz", "proxy")),
        ("/healthz/ping", ("healthz", "proxy")),
        ("/configz", ("configz", "proxy")),
        ("/metrics", ("metrics",)),
        ("/metrics/cadvisor", ("metrics",)),
        ("/stats/summary", ("stats",)),
        ("/logs/x", ("log",)),
        ("/checkpoint/a/b/c", ("checkpoint",)),
        ("/containerLogs/a/b/c", ("proxy",)),
        ("/exec/a/b/c", ("proxy",)),
        ("/nosuch", ("proxy",)),
        ("/", ("proxy",)),
    ],
)
def test_subresources(path: str, expected: tuple[str, ...]) -> None:
    """Each path asks for what the kubelet asks for."""
    assert auth.subresources(path) == expected


def test_certificate_names_user_and_groups() -> None:
    """CN is the user, each O a group, and all are authenticated."""
    user = auth.user_of_certificate(CERTIFICATE)
    assert user == auth.UserInfo(name="apiserver", groups=("system:masters", "x", "system:authenticated"))
    assert auth.user_of_certificate({}) is None
    assert auth.user_of_certificate(None) is None
    assert auth.user_of_certificate({"subject": ((("organizationName", "system:masters"),),)}) is None


async def test_certificate_wins_over_token() -> None:
    """A request with both is the certificate's; the token is not even looked at."""
    server = kube.FakeKube()
    user = await auth.Authenticator(server).user(certificate=CERTIFICATE, authorization="Bearer t")
    assert user is not None
    assert user.name == "apiserver"
    assert server.calls == []


async def test_token_is_reviewed_and_remembered() -> None:
    """The API server says whose token it is; for two minutes it is not asked again."""
    server, clock = kube.FakeKube(), Clock()
    server.reactions[auth.TOKEN_REVIEWS] = lambda body: {
        "status": {
            "authenticated": body["spec"]["token"] == "good",
            "user": {"username": "sa", "uid": "7", "groups": ["g"], "extra": {"k": ["v"]}},
        }
    }
    authenticator = auth.Authenticator(server, clock=clock)

    async def ask(header: str) -> auth.UserInfo | None:
        return await authenticator.user(certificate=None, authorization=header)

    user = await ask("bearer good")
    assert user == auth.UserInfo(name="sa", uid="7", groups=("g", "system:authenticated"), extra=(("k", ("v",)),))
    assert await ask("Bearer  good ") == user
    assert await ask("Bearer bad") is None
    assert await ask("Bearer bad") is None
    assert len(server.calls) == 2
    clock.now += 121
    assert await ask("Bearer good") == user
    assert len(server.calls) == 3
    for header in ("", "Basic good", "Bearer", "Bearer "):
        assert await ask(header) is None
    assert len(server.calls) == 3


def _allowing(*subresources: str) -> tuple[kube.FakeKube, list[dict[str, Any]]]:
    server = kube.FakeKube()
    asked: list[dict[str, Any]] = []

    def answer(body: dict[str, Any]) -> dict[str, Any]:
        asked.append(body["spec"])
        return {"status": {"allowed": body["spec"]["resourceAttributes"]["subresource"] in subresources}}

    server.reactions[auth.ACCESS_REVIEWS] = answer
    return server, asked


async def test_falls_back_to_proxy() -> None:
    """Who may do anything with the node may also read its pods."""
    server, asked = _allowing("proxy")
    authorizer = auth.Authorizer(server, "hpk")
    user = auth.UserInfo(name="u", uid="1", groups=("g",), extra=(("k", ("v",)),))
    assert await authorizer.refusal(user, method="GET", path="/pods") is None
    assert [question["resourceAttributes"]["subresource"] for question in asked] == ["pods", "proxy"]
    assert asked[0] == {
        "user": "u",
        "uid": "1",
        "groups": ["g"],
        "extra": {"k": ["v"]},
        "resourceAttributes": {
            "verb": "get",
            "version": "v1",
            "resource": "nodes",
            "subresource": "pods",
            "name": "hpk",
        },
    }


async def test_refusal_is_the_kubelets_text() -> None:
    """The text names user, verb and subresources as the kubelet does."""
    server, _ = _allowing()
    text = await auth.Authorizer(server, "hpk").refusal(USER, method="POST", path="/healthz")
    assert text == "Forbidden (user=u, verb=create, resource=nodes, subresource(s)=[healthz proxy])\n"


async def test_answers_are_remembered_allow_longer_than_deny() -> None:
    """Five minutes for yes, thirty seconds for no, apart by user and verb."""
    server, asked = _allowing("metrics")
    clock = Clock()
    authorizer = auth.Authorizer(server, "hpk", clock=clock)

    async def ask(path: str) -> bool:
        return await authorizer.refusal(USER, method="GET", path=path) is None

    assert (await ask("/metrics"), await ask("/stats")) == (True, False)
    clock.now = 29
    assert (await ask("/metrics"), await ask("/stats")) == (True, False)
    assert len(asked) == 2
    clock.now = 31
    assert (await ask("/metrics"), await ask("/stats")) == (True, False)
    assert len(asked) == 3
    clock.now = 301
    await ask("/metrics")
    assert len(asked) == 4
    await authorizer.refusal(auth.UserInfo(name="v"), method="GET", path="/metrics")
    await authorizer.refusal(USER, method="POST", path="/metrics")
    assert len(asked) == 6


async def test_an_api_server_that_is_away_is_no_permission() -> None:
    """The text is the kubelet's, and the failure is not remembered."""
    server, _ = _allowing("proxy")
    server.fail(errors.ApiUnavailable("down"))
    authorizer = auth.Authorizer(server, "hpk")
    with pytest.raises(
        auth.CannotAsk, match=r"Authorization error \(user=u, verb=get, resource=nodes, subresource=proxy"
    ):
        await authorizer.refusal(USER, method="GET", path="/exec/a/b/c")
    assert await authorizer.refusal(USER, method="GET", path="/exec/a/b/c") is None


def test_memory_is_bounded() -> None:
    """Strangers who ask with ever new names push each other out."""
    remembered: auth.Remembered[int] = auth.Remembered(clock=lambda: 0.0, most=10)
    for number in range(100):
        remembered.put(number, number, seconds=1)
    assert remembered.get(99) == 99
    assert remembered.get(89) is None
    assert len(remembered._values) == 10
