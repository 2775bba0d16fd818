"""The fields of ``v1.Pod`` that HPK supports, decoded with :func:`pod`.

Any other field is rejected by name, or has no meaning here: ``hpk.pods.fields`` says which and why. Field names are
the API's, in snake case. Source: k8s.io/api/core/v1/types.go of Kubernetes 1.37.
"""

from __future__ import annotations

from datetime import datetime  # noqa: TC003 - msgspec resolves the annotations
from typing import Any

import msgspec

from hpk.kube.handlers import Lifecycle, Probe  # noqa: TC001 - msgspec resolves the annotations
from hpk.kube.model import Model
from hpk.kube.selectors import Affinity, LabelSelector, Toleration, TopologySpreadConstraint


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


class Resources(Model, frozen=True, kw_only=True):
    limits: dict[str, str | int | float] = {}
    requests: dict[str, str | int | float] = {}


class VolumeMount(Model, frozen=True, kw_only=True):
    name: str
    mount_path: str
    sub_path: str = ""
    sub_path_expr: str = ""
    read_only: bool = False
    recursive_read_only: str = ""
    mount_propagation: str = ""


class Capabilities(Model, frozen=True, kw_only=True):
    add: list[str] = []
    drop: list[str] = []


class SeccompProfile(Model, frozen=True, kw_only=True):
    type: str
    localhost_profile: str = ""


class AppArmorProfile(Model, frozen=True, kw_only=True):
    type: str


class SELinuxOptions(Model, frozen=True, kw_only=True):
    user: str = ""
    role: str = ""
    type: str = ""
    level: str = ""


class SecurityContext(Model, frozen=True, kw_only=True):
    run_as_user: int | None = None
    run_as_group: int | None = None
    run_as_non_root: bool | None = None
    read_only_root_filesystem: bool = False
    allow_privilege_escalation: bool | None = None
    capabilities: Capabilities = Capabilities()
    privileged: bool = False
    proc_mount: str = ""
    seccomp_profile: SeccompProfile | None = None
    app_armor_profile: AppArmorProfile | None = None
    se_linux_options: SELinuxOptions | None = None


class PodSecurityContext(Model, frozen=True, kw_only=True):
    run_as_user: int | None = None
    run_as_group: int | None = None
    run_as_non_root: bool | None = None
    supplemental_groups: list[int] = []
    supplemental_groups_policy: str = ""
    fs_group: int | None = None
    seccomp_profile: SeccompProfile | None = None
    app_armor_profile: AppArmorProfile | None = None
    se_linux_options: SELinuxOptions | None = None


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
    liveness_probe: Probe | None = None
    readiness_probe: Probe | None = None
    startup_probe: Probe | None = None
    lifecycle: Lifecycle | None = None


class EphemeralContainer(Container, frozen=True, kw_only=True):
    """An ephemeral container; the API server rejects ports, probes, hooks, resources and sub paths in it."""

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


class SchedulingGate(Model, frozen=True, kw_only=True):
    name: str


class ReadinessGate(Model, frozen=True, kw_only=True):
    condition_type: str


class PodOS(Model, frozen=True, kw_only=True):
    name: str


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
    os: PodOS | None = None
    runtime_class_name: str = ""
    overhead: dict[str, str | int | float] = {}
    resources: Resources = Resources()
    # For a scheduler, see hpk.pods.schedule.
    scheduler_name: str = ""
    scheduling_gates: list[SchedulingGate] = []
    priority: int = 0
    tolerations: list[Toleration] = []
    affinity: Affinity = Affinity()
    topology_spread_constraints: list[TopologySpreadConstraint] = []
    readiness_gates: list[ReadinessGate] = []


class Condition(Model, frozen=True, kw_only=True):
    type: str
    status: str
    reason: str | None = None
    message: str | None = None


class PodStatus(Model, frozen=True, kw_only=True):
    phase: str = "Pending"
    start_time: datetime | None = None
    conditions: list[Condition] = []
    observed_generation: int = 0


class Pod(Model, frozen=True, kw_only=True):
    """A pod."""

    metadata: Metadata
    spec: PodSpec
    status: PodStatus = PodStatus()

    @property
    def where(self) -> str:
        """``namespace/name``, for messages."""
        return f"{self.metadata.namespace}/{self.metadata.name}"

    @property
    def all_containers(self) -> list[Container]:
        """Init containers, then the others, in the order of the spec; no ephemeral containers."""
        return [*self.spec.init_containers, *self.spec.containers]


def pod(raw: dict[str, Any]) -> Pod:
    """Return the typed view of a raw pod, without fields that HPK does not know.

    Raises:
        msgspec.ValidationError: The object is not a pod; the API server rejects such objects.
    """
    return msgspec.convert(raw, Pod)
