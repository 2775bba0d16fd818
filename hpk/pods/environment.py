"""A container's environment, and the expansion of ``$(NAME)``; pure and byte-exact.

Order and rules are the kubelet's (kubelet_pods.go makeEnvironmentVariables, third_party/forked/golang/expansion):
envFrom in order, then env in order, then services' variables that are not set. ``value`` is expanded with earlier
variables, a value from elsewhere never is; an unknown name stays as written.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from hpk import errors
from hpk.volumes import downward

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from decimal import Decimal

    from hpk.kube import v1
    from hpk.volumes import sources

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class InvalidConfig(errors.HpkError):
    """A container cannot be configured, yet or at all; the text is the kubelet's."""


def resolve(
    pod: v1.Pod,
    container: v1.Container,
    *,
    found: sources.Sources,
    image: Iterable[tuple[str, str]],
    services: Mapping[str, str],
    allocatable: Mapping[str, Decimal],
) -> dict[str, str]:
    """Return all variables of the container; the image's have the lowest priority.

    Raises:
        InvalidConfig: Something that is not optional is missing.
        errors.PodRefused: A reference that does not exist in Kubernetes.
    """
    given: dict[str, str] = {}
    for source in container.env_from:
        given |= _from(source, found)
    for variable in container.env:
        value = _value(pod, container, variable, found=found, known={**services, **given}, allocatable=allocatable)
        if value is not None:
            given[variable.name] = value
    weakest = {"PATH": DEFAULT_PATH, **dict(image), "HOSTNAME": hostname(pod)}
    return {**weakest, **services, **given}


def hostname(pod: v1.Pod) -> str:
    """Return the first 63 characters of the host name or pod name, without trailing ``-`` and ``.``."""
    return (pod.spec.hostname or pod.metadata.name)[:63].rstrip("-.")


def _from(source: v1.EnvFrom, found: sources.Sources) -> dict[str, str]:
    if source.config_map_ref:
        name, optional = source.config_map_ref.name, source.config_map_ref.optional
        data = _data("configmap", name, found.config_maps.get(name), is_optional=optional)
    elif source.secret_ref:
        name, optional = source.secret_ref.name, source.secret_ref.optional
        data = _data("secret", name, found.secrets.get(name), is_optional=optional)
    else:
        data = {}
    return {source.prefix + key: value for key, value in data.items()}


def _data(kind: str, name: str, item: dict[str, Any] | None, *, is_optional: bool) -> dict[str, str]:
    if item is None:
        if is_optional:
            return {}
        raise InvalidConfig(f'{kind} "{name}" not found')
    data: dict[str, str] = item.get("data") or {}
    if kind == "secret":
        # surrogateescape carries bytes that are not UTF-8 through to the agent unchanged
        return {key: base64.b64decode(value).decode("utf-8", "surrogateescape") for key, value in data.items()}
    return dict(data)


def _value(
    pod: v1.Pod,
    container: v1.Container,
    variable: v1.EnvVar,
    *,
    found: sources.Sources,
    known: Mapping[str, str],
    allocatable: Mapping[str, Decimal],
) -> str | None:
    source = variable.value_from
    if source is None:
        return expand(variable.value, known)
    if source.field_ref:
        return downward.field(pod, source.field_ref.field_path)
    if source.resource_field_ref:
        return downward.resource(pod, container.name, source.resource_field_ref, allocatable=allocatable)
    if source.config_map_key_ref:
        return _key("configmap", source.config_map_key_ref, found.config_maps, pod)
    if source.secret_key_ref:
        return _key("secret", source.secret_key_ref, found.secrets, pod)
    return ""


def _key(kind: str, ref: v1.KeySelector, objects: Mapping[str, dict[str, Any] | None], pod: v1.Pod) -> str | None:
    data = _data(kind, ref.name, objects.get(ref.name), is_optional=ref.optional)
    if ref.key in data:
        return data[ref.key]
    if ref.optional:
        return None
    nice = "ConfigMap" if kind == "configmap" else "Secret"
    raise InvalidConfig(f"couldn't find key {ref.key} in {nice} {pod.metadata.namespace}/{ref.name}")


def expand(text: str, known: Mapping[str, str]) -> str:
    """Replace each ``$(NAME)`` that is known, once; ``$$`` is a ``$``; all else stays.

    >>> expand("$(A) $$(A) $(B) $A $(A", {"A": "x"})
    'x $(A) $(B) $A $(A'
    """
    out: list[str] = []
    at = 0
    while (dollar := text.find("$", at)) >= 0 and dollar + 1 < len(text):
        out.append(text[at:dollar])
        following = text[dollar + 1]
        end = text.find(")", dollar + 2) if following == "(" else -1
        if following == "$":
            out.append("$")
            at = dollar + 2
        elif end >= 0:
            name = text[dollar + 2 : end]
            out.append(known.get(name, f"$({name})"))
            at = end + 1
        elif following == "(":
            out.append("$(")
            at = dollar + 2
        else:
            out.append("$" + following)
            at = dollar + 2
    return "".join(out) + text[at:]


def service_variables(services: Iterable[dict[str, Any]], *, namespace: str, has_links: bool) -> dict[str, str]:
    """Return ``FOO_SERVICE_HOST`` and similar (pkg/kubelet/envvars) for the services of the pod's namespace."""
    variables: dict[str, str] = {}
    for service in services:
        ip = service["spec"].get("clusterIP") or "None"
        if not has_links or ip == "None" or service["metadata"]["namespace"] != namespace:
            continue
        variables |= _of_service(service["metadata"]["name"], ip, service["spec"].get("ports") or [])
    return variables


def _of_service(name: str, ip: str, ports: list[dict[str, Any]]) -> dict[str, str]:
    if not ports:
        return {}
    prefix = name.upper().replace("-", "_")
    first = ports[0]
    variables = {f"{prefix}_SERVICE_HOST": ip, f"{prefix}_SERVICE_PORT": str(first["port"])}
    for port in ports:
        if port.get("name"):
            variables[f"{prefix}_SERVICE_PORT_{port['name'].upper().replace('-', '_')}"] = str(port["port"])
    protocol = first.get("protocol", "TCP").lower()
    variables[f"{prefix}_PORT"] = f"{protocol}://{ip}:{first['port']}"
    for port in ports:
        protocol = port.get("protocol", "TCP")
        key = f"{prefix}_PORT_{port['port']}_{protocol}"
        variables[key] = f"{protocol.lower()}://{ip}:{port['port']}"
        variables |= {f"{key}_PROTO": protocol.lower(), f"{key}_PORT": str(port["port"]), f"{key}_ADDR": ip}
    return variables


def api_server_variables(host: str, port: int) -> dict[str, str]:
    """Return the variables of ``default/kubernetes``, with an address that works from compute nodes."""
    return _of_service("kubernetes", host, [{"name": "https", "port": port, "protocol": "TCP"}])


def argv(
    container: v1.Container, *, entrypoint: Iterable[str], command: Iterable[str], known: Mapping[str, str]
) -> list[str]:
    """Return the argv: ``command`` replaces ENTRYPOINT and drops CMD, ``args`` alone replaces CMD.

    Raises:
        InvalidConfig: Neither the pod nor the image names a command.
    """
    given = [expand(word, known) for word in container.command]
    given_args = [expand(word, known) for word in container.args]
    words = [*given, *given_args] if given else [*entrypoint, *(given_args or command)]
    if not words:
        raise InvalidConfig("no command specified")
    return words
