"""spec.json and the job's options say all that the pod asked for, resolved."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hpk import jobdir
from hpk.images import image as images
from hpk.kube import v1
from hpk.pods import admit, translate
from hpk.volumes import sources

if TYPE_CHECKING:
    from hpk import records

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
SITE = translate.Site(
    cluster_domain="cluster.local",
    api_host="192.0.2.1",
    api_port=6443,
    images=Path("/home/u/.hpk/images"),
    prelude="",
)
CLUSTER = admit.Cluster(
    name="hpk",
    allocatable={"cpu": Decimal(8)},
    flags={"partition": "main", "account": "lab"},
    network="flannel",
)
LINK: records.LinkCredentials = {"ca": "a", "certificate": "b", "key": "c"}


def pod(container: dict[str, Any] | None = None, *, annotations: dict[str, str] | None = None, **spec: Any) -> v1.Pod:
    """A pod of one container, unless the spec has its own."""
    meta = {"name": "p", "namespace": "ns", "uid": "u", "annotations": annotations or {}}
    containers = [{"name": "c", "image": "i", **(container or {})}]
    return v1.pod({"metadata": meta, "spec": {"containers": containers, **spec}})


def planned(one: v1.Pod, *, file: str = "/home/u/.hpk/images/a.sqfs", **config: Any) -> records.PodPlan:
    """The plan, with an image of this config for every container."""
    image = images.Image(
        reference="i",
        image_id="i@sha256:1",
        file=Path(file),
        offset=4096,
        size_bytes=1,
        config=images.ImageConfig(**{"command": ("run",), **config}),
        was_pulled=False,
        seconds=0.0,
    )
    found = translate.Ingredients(
        images={c.name: image for c in one.all_containers},
        sources=sources.Sources(),
        services=[],
        link=LINK,
        started_at=NOW,
    )
    return translate.pod_plan(admit.derive(one, CLUSTER), site=SITE, cluster=CLUSTER, found=found)


def only(container: dict[str, Any] | None = None, *, spec: dict[str, Any] | None = None, **config: Any) -> Any:
    """The plan of a pod's only container."""
    (made,) = planned(pod(container, **(spec or {})), **config)["containers"]
    return made


def test_the_plan_carries_the_pod() -> None:
    """Who it is, how long it may run, and how its agent reaches the kubelet."""
    plan = planned(pod(activeDeadlineSeconds=60, terminationGracePeriodSeconds=5, restartPolicy="OnFailure"))
    assert (plan["uid"], plan["namespace"], plan["name"], plan["hostname"]) == ("u", "ns", "p", "p")
    assert plan["deadline_at"] == NOW.timestamp() + 60
    assert (plan["grace_seconds"], plan["restart_policy"], plan["network"]) == (5, "OnFailure", "flannel")
    assert plan["link"] == LINK


def test_containers_keep_their_order_and_kind() -> None:
    """Init containers and sidecars first, as they start."""
    inits = [{"name": "i", "image": "i"}, {"name": "s", "image": "i", "restartPolicy": "Always"}]
    kinds = [(c["name"], c["kind"]) for c in planned(pod(initContainers=inits))["containers"]]
    assert kinds == [("i", "init"), ("s", "sidecar"), ("c", "app")]


def test_images_are_where_the_sandbox_sees_them() -> None:
    """Converted ones in its images directory, a user's SIF at its own path on the host."""
    assert only()["image_file"] == f"{jobdir.SANDBOX_IMAGES}/a.sqfs"
    assert only()["image_offset"] == 4096
    assert only(file="/project/x.sif")["image_file"] == f"{jobdir.SANDBOX_HOST}/project/x.sif"


def test_every_container_learns_where_the_api_server_is() -> None:
    """At an address that works from compute nodes."""
    env = dict(only()["env"])
    assert (env["KUBERNETES_SERVICE_HOST"], env["KUBERNETES_SERVICE_PORT"]) == ("192.0.2.1", "6443")


@pytest.mark.parametrize(
    ("given", "cwd"), [({}, "/image"), ({"workingDir": "/mine"}, "/mine")], ids=["of the image", "of the pod"]
)
def test_the_working_directory_is_the_pods_else_the_images(given: dict[str, Any], cwd: str) -> None:
    """The pod's own wins."""
    assert only(given, working_dir="/image")["cwd"] == cwd


def test_who_a_container_is_comes_from_its_own_context_then_the_pods_then_the_image() -> None:
    """The narrower says; groups are the pod's."""
    context = {"runAsUser": 1, "runAsGroup": 2, "supplementalGroups": [7], "fsGroup": 8}
    user = only({"securityContext": {"runAsUser": 5}}, spec={"securityContext": context}, user="nobody")["user"]
    assert user == {"uid": 5, "gid": 2, "name": "nobody", "groups": [7, 8]}
    assert only(user="nobody")["user"] == {"uid": None, "gid": None, "name": "nobody", "groups": []}


@pytest.mark.parametrize(
    ("uid", "user", "words"),
    [
        (0, "", "runAsUser breaks non-root policy"),
        (None, "", "image will run as root"),
        (None, "0:0", "image will run as root"),
        (None, "app", "non-numeric user (app)"),
        (None, "1000:1000", None),
        (1, "root", None),
    ],
)
def test_run_as_non_root_is_checked_before_the_job(uid: int | None, user: str, words: str | None) -> None:
    """In the kubelet's words, for the container that breaks it."""
    container = {"securityContext": {"runAsNonRoot": True, "runAsUser": uid}}
    if words is None:
        assert only(container, user=user)["user"]["uid"] == uid
        return
    with pytest.raises(translate.ContainerConfigError) as caught:
        only(container, user=user)
    assert words in str(caught.value)
    assert caught.value.container == "c"


@pytest.mark.parametrize(
    ("own", "theirs", "profile"),
    [
        (None, None, "Unconfined"),
        (None, "RuntimeDefault", "RuntimeDefault"),
        ("RuntimeDefault", "Unconfined", "RuntimeDefault"),
        ("Unconfined", "RuntimeDefault", "Unconfined"),
    ],
)
def test_the_seccomp_profile_is_the_container_s_else_the_pod_s_else_none(
    own: str | None, theirs: str | None, profile: str
) -> None:
    """As upstream, where SeccompDefault is off."""

    def context(kind: str | None) -> dict[str, Any]:
        return {"securityContext": {"seccompProfile": {"type": kind}}} if kind else {}

    made = only({"name": "c", "image": "i", "command": ["x"], **context(own)}, spec=context(theirs))
    assert made["seccomp_profile"] == profile


@pytest.mark.parametrize(
    ("own", "whole", "limit"), [("64Mi", "1Gi", 64 << 20), (None, "1Gi", 1 << 30), (None, None, None)]
)
def test_a_container_s_memory_limit_is_its_own_else_the_pod_s(
    own: str | None, whole: str | None, limit: int | None
) -> None:
    """No container may hold more than the pod as a whole."""

    def limits(memory: str | None) -> dict[str, Any]:
        return {"resources": {"limits": {"memory": memory}}} if memory else {}

    made = only({"name": "c", "image": "i", "command": ["x"], **limits(own)}, spec=limits(whole))
    assert made["memory_limit"] == limit


def test_a_sub_path_expression_is_expanded_and_stays_within_its_volume() -> None:
    """From the container's environment; what would leave the volume is refused."""
    volumes = {"volumes": [{"name": "v", "emptyDir": {}}]}
    mount = {"name": "v", "mountPath": "/m", "subPathExpr": "$(A)/x"}
    good = only({"volumeMounts": [mount], "env": [{"name": "A", "value": "a"}]}, spec=volumes)
    assert good["mounts"] == [{"volume": "v", "path": "/m", "sub_path": "a/x", "read_only": False}]
    for value in ("..", "/etc"):
        with pytest.raises(translate.ContainerConfigError):
            only({"volumeMounts": [mount], "env": [{"name": "A", "value": value}]}, spec=volumes)
    with pytest.raises(translate.ContainerConfigError):
        only({"volumeMounts": [mount]}, spec=volumes)


def test_an_image_and_a_pod_without_any_command_are_a_config_error() -> None:
    """As the kubelet says it."""
    with pytest.raises(translate.ContainerConfigError, match="no command specified"):
        only(command=())


def test_the_agent_is_told_of_probes_and_hooks_what_was_given() -> None:
    """No more, no less: a zero that was written is there, a default of ours is not."""
    probe = {"httpGet": {"port": "web", "httpHeaders": [{"name": "a", "value": "b"}]}, "initialDelaySeconds": 0}
    hooks = {"preStop": {"sleep": {"seconds": 3}}, "stopSignal": "SIGUSR1"}
    made = only({"readinessProbe": probe, "lifecycle": hooks})
    assert (made["readiness_probe"], made["lifecycle"], made["liveness_probe"]) == (probe, hooks, None)
    assert made["stop_signal"] == "SIGUSR1"


def test_hosts_has_the_pods_name_and_its_aliases() -> None:
    """With the full name where there is a subdomain; the address is the agent's to fill in."""
    one = pod(hostname="h", subdomain="s", hostAliases=[{"ip": "192.0.2.9", "hostnames": ["a", "b.c"]}])
    text = translate.hosts(one, "cluster.local")
    assert f"\n{jobdir.POD_IP}\th.s.ns.svc.cluster.local\th\n" in text
    assert text.endswith("# Entries added by HostAliases.\n192.0.2.9\ta\tb.c\n")


def test_hosts_of_the_hosts_network_is_the_nodes_own() -> None:
    """Under the kubelet's header, with the pod's aliases."""
    one = pod(hostNetwork=True, hostAliases=[{"ip": "192.0.2.9", "hostnames": ["a"]}])
    assert translate.hosts(one, "cluster.local") == (
        f"# Kubernetes-managed hosts file (host network).\n{jobdir.NODE_HOSTS}\n# Entries added by HostAliases.\n"
        "192.0.2.9\ta\n"
    )


@pytest.mark.parametrize(("policy", "base"), [("ClusterFirst", None), ("Default", None), ("None", "")])
def test_what_a_pod_adds_to_its_resolv_conf_counts_whatever_its_policy(policy: str, base: str | None) -> None:
    """To the node's own, or with policy None to nothing."""
    options = [{"name": "ndots", "value": "2"}, {"name": "rotate"}]
    config = {"nameservers": ["192.0.2.53"], "searches": ["a", "b"], "options": options}
    plan = planned(pod(dnsPolicy=policy, dnsConfig=config))
    assert plan["resolv_conf"] == base
    assert plan["dns"] == {
        "nameservers": ["192.0.2.53"],
        "searches": ["a", "b"],
        "options": [("ndots", "2"), ("rotate", None)],
    }
    assert "dns" not in planned(pod(dnsPolicy="Default"))


def options(one: v1.Pod) -> dict[str, str | None]:
    """The job's options."""
    return translate.directives(admit.derive(one, CLUSTER), directory=Path("/d/pods/u"))


def test_the_pods_own_flags_win_but_for_what_finds_the_job_again() -> None:
    """Partition from the pod, account from the settings; working directory and output stay ours."""
    made = options(pod(annotations={"slurm.hpk.io/flags": "--partition=gpu --comment=mine --cpus-per-task=4"}))
    assert (made["partition"], made["account"], made["comment"]) == ("gpu", "lab", "mine")
    assert made["cpus-per-task"] == "4"
    assert (made["chdir"], made["output"]) == ("/d/pods/u", "/d/pods/u/job.out")
    assert "no-requeue" in made


@pytest.mark.parametrize(
    ("flags", "ntasks"),
    [
        ("", "1"),
        ("--nodes=1", "1"),
        ("--ntasks=4", "4"),
        ("--nodes=2", None),
        ("--ntasks-per-node=4", None),
        ("--nodes=2 --ntasks=8", "8"),
        ("--ntasks-per-gpu=2", None),
    ],
)
def test_one_task_is_asked_for_where_the_flags_do_not_count_them(flags: str, ntasks: str | None) -> None:
    """Beside --nodes=2 it would make one node of them, with no more than a warning."""
    assert options(pod(annotations={"slurm.hpk.io/flags": flags})).get("ntasks") == ntasks


def test_the_pods_memory_by_cpu_replaces_what_hpk_derives() -> None:
    """Sbatch takes --mem or --mem-per-cpu, and not both; the same for CPUs by GPU."""
    made = options(
        pod(
            {"resources": {"limits": {"memory": "1Gi", "nvidia.com/gpu": 1}}},
            annotations={"slurm.hpk.io/flags": "--mem-per-cpu=2G --cpus-per-gpu=4"},
        )
    )
    assert (made["mem-per-cpu"], made["cpus-per-gpu"], made["gres"]) == ("2G", "4", "gpu:1")
    assert not made.keys() & {"mem", "cpus-per-task"}


def test_memory_is_rounded_up_and_gpus_become_gres() -> None:
    """With the overhead of the sandbox."""
    made = options(pod({"resources": {"limits": {"memory": "1000001", "nvidia.com/gpu": 2}}}))
    assert (made["mem"], made["gres"]) == ("97M", "gpu:2")
