"""A container's environment and command are what the kubelet would make of them, byte for byte."""

from __future__ import annotations

import base64
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpk import jobdir
from hpk.kube import v1
from hpk.pods import environment
from hpk.volumes import sources


def pod(container: dict[str, Any], **spec: Any) -> v1.Pod:
    """A pod of one container."""
    meta = {"name": "p", "namespace": "ns", "uid": "u-1", "labels": {"app": "demo"}}
    return v1.pod({"metadata": meta, "spec": {"containers": [{"name": "c", **container}], "nodeName": "hpk", **spec}})


def resolve(container: dict[str, Any], *, found: sources.Sources | None = None, **kwargs: Any) -> dict[str, str]:
    """The environment of a pod's only container, without what every container has."""
    one = pod(container)
    env = environment.resolve(
        one,
        one.spec.containers[0],
        found=found or sources.Sources(),
        image=kwargs.get("image", ()),
        services=kwargs.get("services", {}),
        allocatable={"cpu": Decimal(64)},
    )
    return {key: value for key, value in env.items() if key not in {"PATH", "HOSTNAME"}}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("$(A)-$(B)", "one-two"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$one"),
        ("$(NOPE)", "$(NOPE)"),
        ("open $(A", "open $(A"),
        ("$A $", "$A $"),
        ("", ""),
        ("$(A)$(A)", "oneone"),
        ("$()", "$()"),
    ],
)
def test_expansion_is_the_kubelets(text: str, expected: str) -> None:
    """Known names are replaced once, ``$$`` is a dollar, everything else stays."""
    assert environment.expand(text, {"A": "one", "B": "two"}) == expected


@given(st.text().filter(lambda text: "$" not in text))
def test_text_without_a_dollar_is_never_changed(text: str) -> None:
    """Expansion touches nothing but ``$``."""
    assert environment.expand(text, {"A": "x"}) == text


def test_values_expand_with_what_came_before_and_references_do_not() -> None:
    """``value`` sees envFrom and earlier variables; what comes from a ConfigMap is never expanded."""
    found = sources.Sources(config_maps={"m": {"data": {"A": "map", "RAW": "keep $(A)"}}})
    container = {
        "envFrom": [{"configMapRef": {"name": "m"}}, {"prefix": "P_", "configMapRef": {"name": "m"}}],
        "env": [
            {"name": "A", "value": "one"},
            {"name": "B", "value": "$(A)-$(LATER)-$(P_A)"},
            {"name": "LATER", "value": "late"},
        ],
    }
    expected = {
        "A": "one",
        "RAW": "keep $(A)",
        "P_A": "map",
        "P_RAW": "keep $(A)",
        "B": "one-$(LATER)-map",
        "LATER": "late",
    }
    assert expected == resolve(container, found=found)


def test_secret_bytes_that_are_not_utf8_survive() -> None:
    """A Secret's value reaches the process as the bytes it has."""
    secret = {"data": {"k": base64.b64encode(b"\xff\x00x"[:1] + b"x").decode()}}
    env = [{"name": "K", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]
    value = resolve({"env": env}, found=sources.Sources(secrets={"s": secret}))["K"]
    assert value.encode("utf-8", "surrogateescape") == b"\xffx"


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ({"configMapKeyRef": {"name": "gone", "key": "k"}}, 'configmap "gone" not found'),
        ({"secretKeyRef": {"name": "gone", "key": "k"}}, 'secret "gone" not found'),
        ({"configMapKeyRef": {"name": "here", "key": "k"}}, "couldn't find key k in ConfigMap ns/here"),
    ],
)
def test_what_is_missing_is_named(source: dict[str, Any], words: str) -> None:
    """A reference that leads nowhere says which, in the kubelet's words."""
    found = sources.Sources(config_maps={"here": {"data": {}}})
    with pytest.raises(environment.InvalidConfig, match=words):
        resolve({"env": [{"name": "X", "valueFrom": source}]}, found=found)


def test_optional_references_leave_the_variable_unset() -> None:
    """An optional key that is missing is no variable at all, not an empty one."""
    source = {"configMapKeyRef": {"name": "gone", "key": "k", "optional": True}}
    assert "X" not in resolve({"env": [{"name": "X", "valueFrom": source}]})


def test_the_downward_api_knows_the_pod() -> None:
    """Fields come from the pod; its address is left for the job to fill in."""
    fields = {"N": "metadata.name", "U": "metadata.uid", "L": "metadata.labels['app']", "IP": "status.podIP"}
    env = [{"name": key, "valueFrom": {"fieldRef": {"fieldPath": path}}} for key, path in fields.items()]
    assert resolve({"env": env}) == {"N": "p", "U": "u-1", "L": "demo", "IP": jobdir.POD_IP}


def test_a_missing_limit_is_the_nodes() -> None:
    """resourceFieldRef of a limit that is not set gives the node's allocatable, rounded up."""
    container = {
        "resources": {"requests": {"cpu": "1500m"}},
        "env": [
            {"name": "L", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
            {"name": "R", "valueFrom": {"resourceFieldRef": {"resource": "requests.cpu"}}},
        ],
    }
    assert resolve(container) == {"L": "64", "R": "2"}


def test_services_become_variables_as_docker_links_did() -> None:
    """FOO_SERVICE_HOST and all its kin, for the services of the pod's namespace that have an address."""
    ports = [{"name": "pg", "port": 5432, "protocol": "TCP"}, {"name": "admin", "port": 80, "protocol": "TCP"}]
    service = {"metadata": {"name": "data-base", "namespace": "ns"}, "spec": {"clusterIP": "10.96.0.7", "ports": ports}}
    headless = {"metadata": {"name": "h", "namespace": "ns"}, "spec": {"clusterIP": "None", "ports": ports}}
    made = environment.service_variables([service, headless], namespace="ns", has_links=True)
    assert made["DATA_BASE_SERVICE_HOST"] == "10.96.0.7"
    assert made["DATA_BASE_PORT"] == "tcp://10.96.0.7:5432"
    assert made["DATA_BASE_PORT_80_TCP_PROTO"] == "tcp"
    assert made["DATA_BASE_SERVICE_PORT_ADMIN"] == "80"
    assert not any(key.startswith("H_") for key in made)
    assert environment.service_variables([service], namespace="other", has_links=True) == {}


@pytest.mark.parametrize(
    ("command", "args", "expected"),
    [
        ([], [], ["/entry", "cmd"]),
        ([], ["a"], ["/entry", "a"]),
        (["/c"], [], ["/c"]),
        (["/c"], ["a"], ["/c", "a"]),
    ],
)
def test_command_and_args_combine_in_the_four_ways(command: list[str], args: list[str], expected: list[str]) -> None:
    """Command replaces ENTRYPOINT and drops CMD; args alone replaces CMD."""
    container = pod({"command": command, "args": args}).spec.containers[0]
    assert environment.argv(container, entrypoint=("/entry",), command=("cmd",), known={}) == expected


def test_the_images_own_words_are_not_expanded() -> None:
    """Expansion is for what the pod says, never for the image's ENTRYPOINT and CMD."""
    container = pod({"args": ["$(A)"]}).spec.containers[0]
    assert environment.argv(container, entrypoint=("$(A)",), command=(), known={"A": "x"}) == ["$(A)", "x"]


def test_nothing_to_run_is_an_error() -> None:
    """A container without any command says so instead of running a shell."""
    with pytest.raises(environment.InvalidConfig, match="no command"):
        environment.argv(pod({}).spec.containers[0], entrypoint=(), command=(), known={})


def test_host_names_are_cut_as_the_kubelet_cuts_them() -> None:
    """63 characters, and no ``-`` or ``.`` at the end."""
    long = v1.pod({"metadata": {"name": "a" * 60 + "---b"}, "spec": {"containers": []}})
    assert environment.hostname(long) == "a" * 60
