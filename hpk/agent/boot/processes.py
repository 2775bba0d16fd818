"""Child processes without ``subprocess``: started by posix_spawn(3), waited for by their users.

Exit statuses are raw, as from ``os.waitpid``. :func:`wait` blocks; while the event loop runs, `hpk.agent.life.reaping`
collects every child.
"""

from __future__ import annotations

import ctypes
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ENVIRONMENT = {"PATH": PATH, "HOME": "/root", "LANG": "C.UTF-8"}

# Slurm sends SIGTERM to every process of a job; those that the pod needs until its end must ignore it.
STEADFAST = (1, 2, 10, 12, 15)

_libc = ctypes.CDLL(None)
_SET_DEFAULTS, _SET_MASK = 0x04, 0x08  # POSIX_SPAWN_SETSIGDEF, POSIX_SPAWN_SETSIGMASK
_SIGNAL_SET_BYTES = 128  # sizeof(sigset_t) of glibc
_ROOM_BYTES = 512  # more than posix_spawnattr_t (336) and posix_spawn_file_actions_t (80) take


def spawn(
    argv: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    files: Mapping[int, int] | None = None,
    blocked_signals: Iterable[int] = (),
) -> int:
    """Start a program and return its process id.

    Args:
        argv: The program's absolute path, and its arguments.
        environment: Its whole environment; by default only PATH, HOME and LANG.
        files: Its descriptor → ours; others are inherited as they are.
        blocked_signals: Signals that never reach it or its children.

    Raises:
        OSError: There is no such program, or no process can be made.
    """
    # Not os.posix_spawn: it cannot name signals 32 and 33, and glibc then starts the program with them ignored.
    attributes, actions = ctypes.create_string_buffer(_ROOM_BYTES), ctypes.create_string_buffer(_ROOM_BYTES)
    _libc.posix_spawnattr_init(attributes)
    _libc.posix_spawn_file_actions_init(actions)
    try:
        # Python, a shell, nohup or a batch system may ignore signals. Programs expect the default, and many shells
        # cannot change what was ignored when they started.
        _libc.posix_spawnattr_setsigdefault(attributes, _signal_set(range(1, 8 * _SIGNAL_SET_BYTES + 1)))
        _libc.posix_spawnattr_setsigmask(attributes, _signal_set(blocked_signals))
        _libc.posix_spawnattr_setflags(attributes, ctypes.c_short(_SET_DEFAULTS | _SET_MASK))
        for theirs, ours in (files or {}).items():
            if failure := _libc.posix_spawn_file_actions_adddup2(actions, ours, theirs):
                raise OSError(failure, os.strerror(failure))
        process = ctypes.c_int()
        words = _strings(argv)
        given = ENVIRONMENT if environment is None else environment
        variables = _strings(f"{name}={value}" for name, value in given.items())
        failure = _libc.posix_spawn(ctypes.byref(process), words[0], actions, attributes, words, variables)
    finally:
        _libc.posix_spawn_file_actions_destroy(actions)
        _libc.posix_spawnattr_destroy(attributes)
    if failure:
        raise OSError(failure, os.strerror(failure), argv[0])
    return process.value


def _signal_set(numbers: Iterable[int]) -> ctypes.Array[ctypes.c_char]:
    """Return a ``sigset_t``; sigaddset(3) refuses the signals that glibc reserves."""
    bits = 0
    for number in numbers:
        bits |= 1 << (number - 1)
    return ctypes.create_string_buffer(bits.to_bytes(_SIGNAL_SET_BYTES, "little"), _SIGNAL_SET_BYTES)


def _strings(words: Iterable[str]) -> ctypes.Array[ctypes.c_char_p]:
    """Return a ``char *[]`` that ends with NULL."""
    encoded = [os.fsencode(word) for word in words]
    if any(b"\0" in word for word in encoded):
        raise ValueError("embedded null byte")
    return (ctypes.c_char_p * (len(encoded) + 1))(*encoded, None)


def wait(process: int) -> int:
    """Block until the process has ended; return its raw status. Only for children that end within milliseconds."""
    return os.waitpid(process, 0)[1]


def exit_code(status: int) -> int:
    """Return the status as a shell shows it: 128 + signal for a signalled process."""
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code
