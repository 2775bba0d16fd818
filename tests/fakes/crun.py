"""In place of crun: `exec` as far as the agent uses it, without any container.  Run as a program, stdlib only."""

import argparse
import array
import fcntl
import json
import os
import socket
import struct
import sys
import termios


def main() -> int:
    """Run the process of the file; end as it does."""
    parser = argparse.ArgumentParser()
    for name in ("--root", "--cgroup-manager", "--log", "--process", "--pid-file", "--console-socket"):
        parser.add_argument(name)
    parser.add_argument("command")
    parser.add_argument("id")
    asked = parser.parse_args()
    with open(asked.process, encoding="utf-8", errors="surrogateescape") as file:  # noqa: PTH123
        process = json.load(file)
    program = find(process["args"][0])
    if not program:
        sys.stderr.write("executable file not found")
        sys.stderr.flush()
        with open(asked.log, "w", encoding="utf-8") as file:  # noqa: PTH123
            file.write(f"executable file `{process['args'][0]}` not found in $PATH: No such file or directory\n")
        return 1
    master, slave = os.openpty() if process["terminal"] else (-1, -1)
    if size := process.get("consoleSize"):
        fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", size["height"], size["width"], 0, 0))
    child = os.fork()
    if child == 0:
        become(program, process, slave)
    with open(asked.pid_file, "w", encoding="ascii") as file:  # noqa: PTH123
        file.write(str(child))
    if master >= 0:
        os.close(slave)
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(asked.console_socket)
        connection.sendmsg([b"/dev/ptmx"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [master]))])
        os.close(master)
    null = os.open("/dev/null", os.O_RDWR)
    for descriptor in range(3):  # as the process's own ends are what counts
        os.dup2(null, descriptor)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return code if code >= 0 else 128 - code


def find(name: str) -> str:
    """The program's path."""
    if "/" in name:
        return name if os.access(name, os.X_OK) else ""
    return next((f"{folder}/{name}" for folder in ("/bin", "/usr/bin") if os.access(f"{folder}/{name}", os.X_OK)), "")


def become(program: str, process: dict, slave: int) -> None:  # type: ignore[type-arg]
    """In the child."""
    if slave >= 0:
        os.setsid()
        fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
        for descriptor in range(3):
            os.dup2(slave, descriptor)
    os.closerange(3, 256)
    environment = dict(one.split("=", 1) for one in process["env"])
    os.execve(program, process["args"], environment)  # noqa: S606


if __name__ == "__main__":
    sys.exit(main())
