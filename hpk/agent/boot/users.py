"""The user of a container's process: the plan's, looked up in the image's own passwd and group files."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hpk import records


class ContainerUser:
    """Numbers for the OCI configuration."""

    def __init__(self, uid: int, gid: int, groups: list[int]) -> None:
        self.uid = uid
        self.gid = gid
        self.groups = groups


def identify(user: records.ProcessUser, *, passwd: bytes, group: bytes) -> ContainerUser:
    """Resolve the plan's user as containerd does.

    A uid or gid of the security context wins over the image's USER. Without a gid, it is the user's own in passwd, or
    0. The image's groups that list the user are added to the plan's.

    Raises:
        LookupError: The image has no such user or group.
    """
    users, groups = _table(passwd, fields=7), _table(group, fields=4)
    name, _, group_name = user["name"].partition(":")
    uid, gid = user["uid"], user["gid"]
    if uid is None:
        uid = _number(name or "0", users, "user", "passwd")
        if gid is None and group_name:
            gid = _number(group_name, groups, "group", "group")
    entry = next((line for line in users if line[2] == str(uid)), None)
    if gid is None:
        gid = int(entry[3]) if entry and entry[3].isdecimal() else 0
    extra = list(user["groups"])
    if entry:
        extra += [int(line[2]) for line in groups if entry[0] in line[3].split(",")]
    return ContainerUser(uid, gid, sorted(set(extra) - {gid}))


def _table(data: bytes, *, fields: int) -> list[list[str]]:
    """Return the lines of a passwd or group file with a valid number, padded to this many fields."""
    lines = [line.split(":") for line in data.decode("utf-8", "replace").splitlines()]
    return [line + [""] * (fields - len(line)) for line in lines if len(line) > 2 and line[2].isdecimal()]  # noqa: PLR2004 - name, password, number


def _number(name: str, table: list[list[str]], kind: str, file: str) -> int:
    for line in table:
        if line[0] == name:
            return int(line[2])
    if name.isdecimal():
        return int(name)
    raise LookupError(f"unable to find {kind} {name}: no matching entries in {file} file")
