"""Another user of the same hosts gets nothing of a control plane or of pods: no port, socket, file or process."""

from __future__ import annotations

import base64
import contextlib
import ipaddress
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, utils

from hpk import pki
from tests import cluster
from tests.e2e.conftest import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.e2e import conftest

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

HOSTS = ("ctl", "c1", "c2")
NEIGHBOUR = "bob"
PROBE = Path(__file__).with_name("neighbour.py").read_text(encoding="utf-8")
OURS = "$2==2000 || ($2>=100000 && $2<165536)"
"""The user's own id and her subordinate ones, for awk."""
HOME = "/home/alice/.hpk /home/alice/.kube /home/alice/.local"
WHERE = "/tmp /var/tmp /scratch /dev/shm /dev/mqueue /run /var/spool /var/log /var/lib/cni"
PUBLIC = re.compile(r"/home/alice(/hpk\.sif|/hpk\.sbatch|/\.local(/bin(/hpk)?)?|/(job|slurm)-\d+\.out)?$")
"""What is the same for everybody.  These tests open the home; what else a user keeps there is their own affair."""
SECRET = "the-pod's-own-secret"
SINCE = "/root/before-these-pods"
"""A file on each host, as old as the test's first step."""


@pytest.fixture
def running(space: conftest.Namespace) -> Iterator[conftest.Namespace]:
    """A pod with secrets on each compute node, in an open home."""
    for host in HOSTS:
        as_root(host, f"touch {SINCE}")
    manifest: dict[str, Any] = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}}
    space.apply(json.dumps(manifest | {"stringData": {"key": SECRET}}))
    for host in ("c1", "c2"):
        container = {
            "name": "c",
            "image": "${REGISTRY}/python:3",
            "command": ["sh", "-c", "echo $PASSWORD > /file; echo $PASSWORD > /data/file; echo $PASSWORD; sleep 600"],
            "env": [{"name": "PASSWORD", "valueFrom": {"secretKeyRef": {"name": "s", "key": "key"}}}],
            "volumeMounts": [{"name": "s", "mountPath": "/s"}, {"name": "d", "mountPath": "/data"}],
        }
        spec = {
            "terminationGracePeriodSeconds": 0,
            "containers": [container],
            "securityContext": {"fsGroup": 2000},
            "volumes": [{"name": "s", "secret": {"secretName": "s"}}, {"name": "d", "emptyDir": {}}],
        }
        meta = {"name": host, "annotations": {"slurm.hpk.io/flags": f"--nodelist={host}"}}
        space.apply(json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}))
    space.kubectl("wait", "pod", "--all", "--for=condition=Ready", "--timeout=300s")
    # Pods that earlier tests deleted at once may still be ending.
    expected = {"hpk", f"{space.name}/c1", f"{space.name}/c2"}
    until(lambda: set(cluster.shell("squeue -h --me -t R,CG -o %j").split()) == expected)
    cluster.shell("chmod 755 ~")
    yield space
    cluster.shell("chmod 700 ~")
    for host in HOSTS:
        as_root(host, f"rm {SINCE}")


@pytest.fixture
def strange(hpk: None, tmp_path: Path) -> Iterator[dict[str, Any]]:
    """Credentials of another cluster, whose names are the same, in files of the neighbour's."""
    certificate = pki.Authority.create("kubernetes").issue(
        "hpk:admin", organizations=("system:masters",), is_client=True
    )
    put = "umask 077; cat > strange.{0}; echo $PWD/strange.{0}"
    files = {
        name: cluster.shell(put.format(name), user=NEIGHBOUR, stdin=pem).strip()
        for name, pem in (("crt", certificate.certificate_pem), ("key", certificate.key_pem))
    }
    yield {"certificate": files["crt"], "key": files["key"], "token": _token()}
    cluster.shell("rm strange.*", user=NEIGHBOUR)


def _token() -> str:
    """What the API server of another cluster would give a service account of the same name."""
    key = ec.generate_private_key(ec.SECP256R1())
    public = key.public_key().public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    digest = hashes.Hash(hashes.SHA256())
    digest.update(public)
    head = {"alg": "ES256", "kid": _text(digest.finalize())}
    issuer = "https://kubernetes.default.svc.cluster.local"
    subject = "system:serviceaccount:kube-system:namespace-controller"
    body = {"iss": issuer, "aud": [issuer], "sub": subject, "exp": 4102444800, "iat": 1700000000, "nbf": 1700000000}
    signed = ".".join(_text(json.dumps(part).encode()) for part in (head, body))
    r, s = utils.decode_dss_signature(key.sign(signed.encode(), ec.ECDSA(hashes.SHA256())))
    return f"{signed}.{_text(r.to_bytes(32) + s.to_bytes(32))}"


def _text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def attempt(host: str, **wanted: Any) -> list[str]:
    """What the neighbour gets on a host."""
    done = cluster.run("python3", "-c", PROBE, user=NEIGHBOUR, host=host, stdin=json.dumps(wanted).encode())
    found: list[str] = json.loads(done.stdout)
    return found


def as_root(host: str, text: str) -> str:
    """A line of shell by root, who sees everything."""
    return cluster.shell(text, user="root", host=host)


def processes(host: str) -> list[int]:
    """All of the user's on a host."""
    return [int(pid) for pid in as_root(host, f"ps -eo pid,uid | awk '{OURS} {{print $1}}'").split()]


def listening(host: str, kind: str, *, inside: int | None = None) -> list[tuple[str, int]]:
    """The sockets that the user's processes listen on: (name, owner's pid)."""
    enter = f"nsenter -t {inside} -n " if inside else ""
    ours = set(processes(host))
    found = []
    for line in as_root(host, f"{enter}ss -Ha{kind}np").splitlines():
        fields = line.split()
        if "pid=" in line and fields[1 if kind == "x" else 0] in {"LISTEN", "UNCONN"}:
            found += [(fields[4 if kind == "x" else 3], pid) for pid in map(int, re.findall(r"pid=(\d+)", line))]
    return [(name, pid) for name, pid in found if pid in ours]


def port(name: str) -> int:
    """Of an address as ss prints it."""
    return int(name.rpartition(":")[2])


def test_ports_answer_nobody_else(running: conftest.Namespace, strange: dict[str, Any]) -> None:
    """Each port of the control plane, on its host's loopback and from others, with another cluster's credentials."""
    seen = 0
    for host in HOSTS:
        for kind, name in (("t", "tcp"), ("u", "udp")):
            ports = sorted({port(name) for name, _ in listening(host, kind)})
            seen += len(ports)
            for origin in HOSTS:
                addresses = ["127.0.0.1", address_of(host)] if origin == host else [address_of(host)]
                targets = [(address, number) for address in addresses for number in ports]
                assert attempt(origin, **{name: targets}, **strange) == []
    assert seen >= 5, "the API server, etcd twice, the kubelet, the link"


def test_the_probe_would_notice_an_open_port(running: conftest.Namespace, strange: dict[str, Any]) -> None:
    """The site's registry answers everybody: these tests can fail."""
    assert attempt("c1", tcp=[(address_of("ctl"), 5000)], **strange)


def test_agents_listen_nowhere(running: conftest.Namespace) -> None:
    """In a pod's network there is nothing but the pod's own."""
    for host in ("c1", "c2"):
        seen = 0
        for pid in processes(host):
            spaces = as_root(host, f"readlink /proc/1/ns/net /proc/{pid}/ns/net 2>/dev/null; true").split()
            if len(set(spaces)) > 1:
                seen += 1
                for kind in ("t", "u", "x"):
                    assert listening(host, kind, inside=pid) == []
        assert seen, "the pod and its agent"


def test_sockets_let_nobody_else_connect(running: conftest.Namespace) -> None:
    """The gateway's and any other, by path or by abstract name."""
    names = {host: sorted({name for name, _ in listening(host, "x")}) for host in HOSTS}
    paths = {name.removesuffix(".new") for found in names.values() for name in found}  # bound, then renamed
    assert any(path.endswith("/gateway/socket") for path in paths)
    for host in HOSTS:
        assert attempt(host, unix=[*names[host], *paths]) == []


def test_files_are_the_users_own(running: conftest.Namespace) -> None:
    """No file or directory can be read, listed, or written, wherever it is, even in an open home.

    Beside the program's own directories: whatever bears its name, or came since these pods were made.
    """
    for host in HOSTS:
        ours = rf"\( -uid 2000 -o -uid +99999 -uid -165536 \) \( -path '*hpk*' -o -newer {SINCE} \)"
        found = as_root(host, f"find {WHERE} {ours} -not -type l -print 2>/dev/null; true").splitlines()
        found += as_root(host, f"find {HOME} -not -type l -print 2>/dev/null; true").splitlines()
        assert any("/.hpk/state/" in path for path in found)
        assert attempt(host, paths=[path for path in found if not PUBLIC.match(path)]) == []


def test_processes_show_nothing(running: conftest.Namespace) -> None:
    """Neither memory nor environment nor files of a process; no signals."""
    for host in HOSTS:
        pids = processes(host)
        assert attempt(host, pids=pids) == []
        assert host == "ctl" or len(pids) >= 3


def test_no_secret_is_in_public_records(running: conftest.Namespace) -> None:
    """Command lines and what Slurm tells everybody hold no key, token or value of a Secret."""
    shown = "".join(as_root(host, "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' '; true") for host in HOSTS)
    shown += cluster.shell(
        "scontrol -dd show job; scontrol show step; squeue -o %all; sacct -a -P -o ALL; true", user=NEIGHBOUR
    )
    job = running.job("c1")
    assert cluster.run("scontrol", "write", "batch_script", job, "-", user=NEIGHBOUR, code=None).stdout == b""
    assert job in shown
    shown += cluster.shell(f"scontrol write batch_script {job} -")
    for secret in secrets():
        assert secret not in shown
    assert "hpk serve" in shown


def secrets() -> set[str]:
    """Lines of private keys and tokens, and the pod's own secret in every form."""
    text = cluster.shell("cat ~/.hpk/state/pki/*/*key ~/.hpk/state/issued/*.key ~/.hpk/pods/*/spec.json ~/.kube/config")
    keys = set(re.findall(r"(?<![A-Za-z0-9+/])[A-Za-z0-9+/=_.-]{60,}", text.replace("\\n", "\n")))
    assert len(keys) > 10
    # Certificates are for everybody.
    public = cluster.shell("cat ~/.hpk/state/issued/*.crt ~/.hpk/state/pki/*/ca.crt")
    keys = {key for key in keys if key not in public and not re.search("[0-9a-f]{64}", key)}  # nor digests
    return keys | {SECRET, base64.b64encode(SECRET.encode()).decode()}


def test_nobody_can_prepare_a_pods_scratch(space: conftest.Namespace) -> None:
    """A pod's UID is for all to see while it queues: a directory or link of that name must not become its scratch."""
    spec = {"restartPolicy": "Never", "containers": [{"name": "c", "image": "${REGISTRY}/busybox:1", "args": ["true"]}]}
    meta = {"name": "late", "annotations": {"slurm.hpk.io/flags": "--hold"}}
    space.apply(json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}))
    until(lambda: "JobHeldUser" in space.get("pod", "late")["status"].get("message", ""))
    uid = space.get("pod", "late")["metadata"]["uid"]
    assert uid in cluster.shell("squeue -o %all", user=NEIGHBOUR)
    trap = f"/tmp/hpk-{uid}"
    with contextlib.ExitStack() as stack:
        for host in ("c1", "c2"):
            cluster.shell(f"mkdir -m 777 {trap}", user=NEIGHBOUR, host=host)
            stack.callback(cluster.shell, f"rm -rf {trap}", user="root", host=host)
        cluster.run("scontrol", "release", space.job("late"))
        until(lambda: space.phase("late") == "Succeeded")
        for host in ("c1", "c2"):
            made, changed = as_root(host, f"stat -c '%W %Y' {trap}").split()
            assert made == changed, "something was made in it"


def address_of(host: str) -> str:
    """Of a host of the simulated cluster."""
    found = as_root(host, f"getent hosts {host}").split()[0]
    return str(ipaddress.ip_address(found))
