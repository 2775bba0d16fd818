"""``v1.Pod`` as far as HPK honours it: what is not a field here is not supported, and is refused by name.

Decoded with :func:`pod`; :func:`unsupported` lists what a raw pod holds beyond these types.  Field names are
those of the API, in snake case.  Source: k8s.io/api/core/v1/types.go of Kubernetes 1.37.
"""

from __future__ import annotations

import functools
from datetime import datetime  # noqa: TC003 - msgspec resolves the annotations
from types import UnionType
from typing import Any, Union, get_args, get_origin

import msgspec


class Model(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An API object or a part of one."""


class OwnerReference(Model, frozen=True, kw_only=True):
    kind: str = ""
    name: str = ""
    uid: str
    controller: bool = False


class Metadata(Model, frozen=True, kw_only=True):
    name: str
    namespace: str = ""
    uid: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owner_references: list[OwnerReference] = []
    generation: int = 0
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    deletion_grace_period_seconds: int | None = None


class KeySelector(Model, frozen=True, kw_only=True):
    name: str = ""
    key: str
    optional: bool = False


class FieldSelector(Model, frozen=True, kw_only=True):
    field_path: str
    api_version: str = "v1"


class ResourceFieldSelector(Model, frozen=True, kw_only=True):
    resource: str
    container_name: str = ""
    divisor: str | int = "1"


class EnvSource(Model, frozen=True, kw_only=True):
    config_map_key_ref: KeySelector | None = None
    secret_key_ref: KeySelector | None = None
    field_ref: FieldSelector | None = None
    resource_field_ref: ResourceFieldSelector | None = None


class EnvVar(Model, frozen=True, kw_only=True):
    name: str
    value: str = ""
    value_from: EnvSource | None = None


class LocalReference(Model, frozen=True, kw_only=True):
    name: str = ""
    optional: bool = False


class EnvFrom(Model, frozen=True, kw_only=True):
    prefix: str = ""
    config_map_ref: LocalReference | None = None
    secret_ref: LocalReference | None = None


class ContainerPort(Model, frozen=True, kw_only=True):
    container_port: int
    name: str = ""
    protocol: str = "TCP"
    host_port: int = 0
    host_ip: str = msgspec.field(default="", name="hostIP")


class Resources(Model, frozen=True, kw_only=True):
    limits: dict[str, str | int | float] = {}
    requests: dict[str, str | int | float] = {}


class VolumeMount(Model, frozen=True, kw_only=True):
    name: str
    mount_path: str
    sub_path: str = ""
    sub_path_expr: str = ""
    read_only: bool = False


class Capabilities(Model, frozen=True, kw_only=True):
    add: list[str] = []
    drop: list[str] = []


class SeccompProfile(Model, frozen=True, kw_only=True):
    type: str


class SecurityContext(Model, frozen=True, kw_only=True):
    run_as_user: int | None = None
    run_as_group: int | None = None
    run_as_non_root: bool | None = None
    read_only_root_filesystem: bool = False
    allow_privilege_escalation: bool | None = None
    capabilities: Capabilities = Capabilities()
    privileged: bool = False
    seccomp_profile: SeccompProfile | None = None


class PodSecurityContext(Model, frozen=True, kw_only=True):
    run_as_user: int | None = None
    run_as_group: int | None = None
    run_as_non_root: bool | None = None
    supplemental_groups: list[int] = []
    fs_group: int | None = None
    fs_group_change_policy: str = ""
    seccomp_profile: SeccompProfile | None = None


class Container(Model, frozen=True, kw_only=True):
    name: str
    image: str = ""
    command: list[str] = []
    args: list[str] = []
    working_dir: str = ""
    env: list[EnvVar] = []
    env_from: list[EnvFrom] = []
    ports: list[ContainerPort] = []
    resources: Resources = Resources()
    volume_mounts: list[VolumeMount] = []
    image_pull_policy: str = ""
    termination_message_path: str = "/dev/termination-log"
    termination_message_policy: str = "File"
    security_context: SecurityContext = SecurityContext()
    stdin: bool = False
    stdin_once: bool = False
    tty: bool = False
    restart_policy: str = ""
    liveness_probe: dict[str, Any] | None = None
    readiness_probe: dict[str, Any] | None = None
    startup_probe: dict[str, Any] | None = None
    lifecycle: dict[str, Any] | None = None
    resize_policy: list[Any] = []


class EphemeralContainer(Container, frozen=True, kw_only=True):
    """The API server lets none through that has ports, probes, hooks, resources or sub paths."""

    target_container_name: str = ""


class KeyToPath(Model, frozen=True, kw_only=True):
    key: str
    path: str
    mode: int | None = None


class ConfigMapSource(Model, frozen=True, kw_only=True):
    name: str = ""
    items: list[KeyToPath] = []
    default_mode: int | None = None
    optional: bool = False


class SecretSource(Model, frozen=True, kw_only=True):
    secret_name: str = ""
    name: str = ""  # in a projected volume
    items: list[KeyToPath] = []
    default_mode: int | None = None
    optional: bool = False


class DownwardItem(Model, frozen=True, kw_only=True):
    path: str
    field_ref: FieldSelector | None = None
    resource_field_ref: ResourceFieldSelector | None = None
    mode: int | None = None


class DownwardSource(Model, frozen=True, kw_only=True):
    items: list[DownwardItem] = []
    default_mode: int | None = None


class TokenSource(Model, frozen=True, kw_only=True):
    path: str
    audience: str = ""
    expiration_seconds: int = 3600


class LabelRequirement(Model, frozen=True, kw_only=True):
    key: str
    operator: str
    values: list[str] = []


class LabelSelector(Model, frozen=True, kw_only=True):
    match_labels: dict[str, str] = {}
    match_expressions: list[LabelRequirement] = []


class TrustBundleSource(Model, frozen=True, kw_only=True):
    path: str
    name: str = ""
    signer_name: str = ""
    label_selector: LabelSelector | None = None
    optional: bool = False


class Projection(Model, frozen=True, kw_only=True):
    config_map: ConfigMapSource | None = None
    secret: SecretSource | None = None
    downward_api: DownwardSource | None = msgspec.field(default=None, name="downwardAPI")
    service_account_token: TokenSource | None = None
    cluster_trust_bundle: TrustBundleSource | None = None


class ProjectedSource(Model, frozen=True, kw_only=True):
    sources: list[Projection] = []
    default_mode: int | None = None


class EmptyDirSource(Model, frozen=True, kw_only=True):
    medium: str = ""
    size_limit: str | int | None = None


class HostPathSource(Model, frozen=True, kw_only=True):
    path: str
    type: str = ""


class Volume(Model, frozen=True, kw_only=True):
    name: str
    empty_dir: EmptyDirSource | None = None
    config_map: ConfigMapSource | None = None
    secret: SecretSource | None = None
    downward_api: DownwardSource | None = msgspec.field(default=None, name="downwardAPI")
    projected: ProjectedSource | None = None
    host_path: HostPathSource | None = None


class HostAlias(Model, frozen=True, kw_only=True):
    ip: str
    hostnames: list[str] = []


class DnsOption(Model, frozen=True, kw_only=True):
    name: str
    value: str | None = None


class DnsConfig(Model, frozen=True, kw_only=True):
    nameservers: list[str] = []
    searches: list[str] = []
    options: list[DnsOption] = []


class PodSpec(Model, frozen=True, kw_only=True):
    containers: list[Container]
    init_containers: list[Container] = []
    ephemeral_containers: list[EphemeralContainer] = []
    volumes: list[Volume] = []
    restart_policy: str = "Always"
    termination_grace_period_seconds: int = 30
    active_deadline_seconds: int | None = None
    node_name: str = ""
    node_selector: dict[str, str] = {}
    service_account_name: str = "default"
    service_account: str = ""
    automount_service_account_token: bool | None = None
    security_context: PodSecurityContext = PodSecurityContext()
    hostname: str = ""
    subdomain: str = ""
    host_aliases: list[HostAlias] = []
    enable_service_links: bool = True
    dns_policy: str = "ClusterFirst"
    dns_config: DnsConfig = DnsConfig()
    host_network: bool = False
    share_process_namespace: bool = False
    image_pull_secrets: list[LocalReference] = []
    # Scheduling is Slurm's; with one node these cannot be violated, or are checked in admit.
    scheduler_name: str = ""
    priority: int = 0
    priority_class_name: str = ""
    preemption_policy: str = ""
    tolerations: list[Any] = []
    affinity: dict[str, Any] = {}
    topology_spread_constraints: list[Any] = []
    readiness_gates: list[dict[str, str]] = []


class PodStatus(Model, frozen=True, kw_only=True):
    phase: str = "Pending"
    start_time: datetime | None = None


class Pod(Model, frozen=True, kw_only=True):
    """A pod: ``pod.where`` is ``namespace/name`` for messages."""

    metadata: Metadata
    spec: PodSpec
    status: PodStatus = PodStatus()

    @property
    def where(self) -> str:
        """``namespace/name``."""
        return f"{self.metadata.namespace}/{self.metadata.name}"

    @property
    def all_containers(self) -> list[Container]:
        """Init containers, then the others, in the order of the spec; ephemeral ones are no part of what a pod is."""
        return [*self.spec.init_containers, *self.spec.containers]


def pod(raw: dict[str, Any]) -> Pod:
    """The typed view of a raw pod; what HPK does not know is left out (see :func:`unsupported`).

    Raises:
        msgspec.ValidationError: The object is no pod; the API server lets none such through.
    """
    return msgspec.convert(raw, Pod)


def unsupported(raw: Any, model: Any = PodSpec, path: str = "spec") -> list[str]:
    """Return the paths of all set fields that the model does not have, such as ``spec.volumes[0].iscsi``.

    Fields that are null, false, zero or empty ask for nothing and are not listed.
    """
    if isinstance(raw, list):
        return [found for index, item in enumerate(raw) for found in unsupported(item, model, f"{path}[{index}]")]
    known = _fields(model)
    if known is None or not isinstance(raw, dict):
        return []
    found = [f"{path}.{key}" for key, value in raw.items() if key not in known and value]
    for key, value in raw.items():
        if key in known and isinstance(value, dict | list):
            found += unsupported(value, known[key], f"{path}.{key}")
    return found


@functools.cache
def _fields(kind: Any) -> dict[str, Any] | None:
    """Return the types of a model's fields by the API's names, or None if there is no model in ``kind``.

    A model is looked for within ``X``, ``X | None`` and ``list[X]``.  The answer is kept: each pod has hundreds of
    fields, and msgspec takes its time to describe a struct.
    """
    if get_origin(kind) in (Union, UnionType, list):
        return next((fields for part in get_args(kind) if (fields := _fields(part)) is not None), None)
    if not (isinstance(kind, type) and issubclass(kind, Model)):
        return None
    return {field.encode_name: field.type for field in msgspec.structs.fields(kind)}
