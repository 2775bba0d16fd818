"""The OCI configuration of a container, and who it runs as."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from hpk.agent.boot import oci, quickjson, users

if TYPE_CHECKING:
    from hpk import records


def plan(**changes: Any) -> records.ContainerPlan:
    """A container's plan."""
    values: dict[str, Any] = {
        "name": "c",
        "cwd": "/",
        "read_only_root": False,
        "no_new_privileges": False,
        "add_capabilities": [],
        "drop_capabilities": [],
        "tty": False,
    }
    return {**values, **changes}  # type: ignore[typeddict-item]


def configuration(*binds: oci.Bind, env: list[list[str]] | None = None, **changes: Any) -> dict[str, Any]:
    """A whole configuration."""
    return oci.configuration(
        plan(**changes),
        root="/root",
        identity=users.ContainerUser(0, 0, []),
        argv=["true"],
        env=env or [],
        binds=list(binds),
        owns_network=True,
        oom_score=500,
    )


def mounts(made: dict[str, Any]) -> list[str]:
    """Where something is mounted, in order."""
    return [mount["destination"] for mount in made["mounts"]]


def test_every_byte_of_an_environment_survives() -> None:
    """Values and odd names reach config.json as they were; a later value of a name wins."""
    env = [["odd name!", 'it\'s "x"\n\\$(id)'], ["1ST", "日本 🚀"], ["A", "1"], ["A", "2"], ["EMPTY", ""]]
    made = configuration(env=env)
    read = json.loads(quickjson.dumps(made))
    assert read["process"]["env"][:4] == ['odd name!=it\'s "x"\n\\$(id)', "1ST=日本 🚀", "A=2", "EMPTY="]


def test_containers_get_containerd_s_capabilities_and_no_more() -> None:
    """Else any image could flush the pod's service rules."""
    granted = configuration()["process"]["capabilities"]
    assert "CAP_NET_ADMIN" not in granted["bounding"]
    assert set(granted) == {"bounding", "effective", "permitted"}
    assert len(granted["effective"]) == 14


@pytest.mark.parametrize(
    ("add", "drop", "has", "has_not"),
    [
        (["NET_ADMIN"], [], "CAP_NET_ADMIN", "CAP_SYS_ADMIN"),
        ([], ["CHOWN"], "CAP_KILL", "CAP_CHOWN"),
        (["CAP_CHOWN"], ["ALL"], "CAP_CHOWN", "CAP_KILL"),
        (["ALL"], ["SYS_ADMIN"], "CAP_NET_ADMIN", "CAP_SYS_ADMIN"),
    ],
)
def test_capabilities_are_added_and_dropped(add: list[str], drop: list[str], has: str, has_not: str) -> None:
    """With or without CAP_, one by one or ALL; an addition survives ``drop: ALL``."""
    granted = oci.capabilities(add, drop)
    assert has in granted
    assert has_not not in granted


def test_mounts_are_ordered_by_depth_and_replace_the_standard_ones() -> None:
    """A mount below another is made after it, and a volume at /dev/shm or /sys takes the place of the default."""
    made = configuration(
        oci.Bind("/v1", "/data/sub/dir"), oci.Bind("/v2", "/data"), oci.Bind("/s", "/dev/shm/"), oci.Bind("/y", "/sys")
    )
    order = mounts(made)
    assert order.index("/data") < order.index("/data/sub/dir")
    assert order.count("/dev/shm") == order.count("/sys") == 1


def test_a_container_s_own_hosts_file_wins() -> None:
    """Of two binds at one path, the later, which is the pod's volume."""
    made = configuration(oci.Bind("/ours", "/etc/hosts"), oci.Bind("/theirs", "/etc/hosts", read_only=True))
    (mount,) = [mount for mount in made["mounts"] if mount["destination"] == "/etc/hosts"]
    assert mount["source"] == "/theirs"
    assert "ro" in mount["options"]


def test_containers_share_all_but_pid_and_mounts() -> None:
    """Network, ipc and uts are the pod's; each container has its own processes."""
    assert configuration()["linux"]["namespaces"] == [{"type": "pid"}, {"type": "mount"}]


def with_one_id(uid: int, gid: int) -> dict[str, Any]:
    """A configuration where the pod has one id."""
    return oci.configuration(
        plan(),
        root="/root",
        identity=users.ContainerUser(uid, gid, []),
        argv=["true"],
        env=[],
        binds=[],
        owns_network=True,
        oom_score=500,
        one_id="/private",
    )


def test_the_one_id_gets_the_number_that_the_container_asks_for() -> None:
    """In a user namespace of its own, which cannot mount what belongs to the pod's; root needs none."""
    made = with_one_id(1234, 77)
    assert {"type": "user"} in made["linux"]["namespaces"]
    assert made["linux"]["uidMappings"] == [{"containerID": 1234, "hostID": 0, "size": 1}]
    assert made["linux"]["gidMappings"] == [{"containerID": 77, "hostID": 0, "size": 1}]
    sources = {mount["destination"]: mount["source"] for mount in made["mounts"]}
    assert (sources["/sys"], sources["/dev/mqueue"]) == ("/private/sys", "/private/mqueue")
    root = with_one_id(0, 0)
    assert "uidMappings" not in root["linux"]
    assert {mount["destination"]: mount["type"] for mount in root["mounts"]}["/sys"] == "sysfs"
    # There is no group 5 to own terminals.
    assert not any("gid=5" in mount["options"] for one in (made, root) for mount in one["mounts"])


PASSWD = b"root:x:0:0::/root:/bin/sh\napp:x:1000:1001::/home/app:/bin/sh\nbroken\n"
GROUP = b"root:x:0:\napp:x:1001:\nwheel:x:10:root,app\nextra:x:77:app\n"


@pytest.mark.parametrize(
    ("user", "uid", "gid", "groups"),
    [
        ({}, 0, 0, [10]),
        ({"name": "app"}, 1000, 1001, [10, 77]),
        ({"name": "1000"}, 1000, 1001, [10, 77]),
        ({"name": "1000:5"}, 1000, 5, [10, 77]),
        ({"name": "app:wheel"}, 1000, 10, [77]),
        ({"name": "4242"}, 4242, 0, []),
        ({"name": "app", "uid": 2}, 2, 0, []),
        ({"uid": 1000, "gid": 9, "groups": [9, 3]}, 1000, 9, [3, 10, 77]),
    ],
)
def test_users_are_resolved_as_containerd_does(user: dict[str, Any], uid: int, gid: int, groups: list[int]) -> None:
    """The security context first, then the image's USER by its own passwd and group files."""
    whole: Any = {"uid": None, "gid": None, "name": "", "groups": [], **user}
    found = users.identify(whole, passwd=PASSWD, group=GROUP)
    assert (found.uid, found.gid, found.groups) == (uid, gid, groups)


def test_an_unknown_user_is_named() -> None:
    """The message says which user the image lacks."""
    user: Any = {"uid": None, "gid": None, "name": "nosuch", "groups": []}
    with pytest.raises(LookupError, match="nosuch"):
        users.identify(user, passwd=PASSWD, group=GROUP)


def test_quick_json_is_json() -> None:
    """Both directions agree with the standard library."""
    value = {"a": [1, 2.5, None, True, {"é": 'q"\n\0'}], "b": {}}
    assert json.loads(quickjson.dumps(value)) == value
    assert quickjson.loads(json.dumps(value)) == value
    with pytest.raises(ValueError, match="not JSON"):
        quickjson.loads("")


def test_a_container_with_a_terminal_knows_its_kind() -> None:
    """TERM is containerd's, unless the pod says something else; without a terminal there is none."""
    assert "TERM=xterm" in configuration(tty=True)["process"]["env"]
    assert "TERM=vt100" in configuration(tty=True, env=[["TERM", "vt100"]])["process"]["env"]
    plain = configuration()["process"]
    assert not plain["terminal"]
    assert not [one for one in plain["env"] if one.startswith("TERM=")]
