"""Who a container's process is: the plan's user, looked up in the image's own passwd and group files."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hpk import records


class Identity:
    """Numbers for the OCI configuration."""

    def __init__(self, uid: int, gid: int, groups: list[int]) -> None:
        self.uid = uid
        self.gid = gid
        self.groups = groups


def identify(user: records.User, *, passwd: bytes, group: bytes) -> Identity:
    """Resolve the plan's user as containerd does.

    A uid or gid of the security context wins over the image's USER; the gid is else the user's own in passwd,
    else 0; groups that list the user in the image are added to the plan's.

    Raises:
        LookupError: The image has no such user or group.
    """
    users = [line.split(":") for line in passwd.decode("utf-8", "replace").splitlines()]
    groups = [line.split(":") for line in group.decode("utf-8", "replace").splitlines()]
    name, _, group_name = user["name"].partition(":")
    uid, gid = user["uid"], user["gid"]
    if uid is None:
        uid = _user_id(name or "0", users)
        if gid is None and group_name:
            gid = _group_id(group_name, groups)
    entry = next((line for line in users if len(line) > 3 and line[2] == str(uid)), None)
    if gid is None:
        gid = int(entry[3]) if entry and entry[3].isdecimal() else 0
    extra = list(user["groups"])
    if entry:
        extra += [
            int(line[2]) for line in groups if len(line) > 3 and line[2].isdecimal() and entry[0] in line[3].split(",")
        ]
    return Identity(uid, gid, sorted(set(extra) - {gid}))


def _user_id(name: str, users: list[list[str]]) -> int:
    for line in users:
        if len(line) > 3 and line[0] == name and line[2].isdecimal():
            return int(line[2])
    if name.isdecimal():
        return int(name)
    raise LookupError(f"unable to find user {name}: no matching entries in passwd file")


def _group_id(name: str, groups: list[list[str]]) -> int:
    for line in groups:
        if len(line) > 2 and line[0] == name and line[2].isdecimal():
            return int(line[2])
    if name.isdecimal():
        return int(name)
    raise LookupError(f"unable to find group {name}: no matching entries in group file")
