"""Run one of the host's programs, by its name: ``python3 host.pyz gateway SOCKET``."""

import importlib
import sys

PROGRAMS = ("gateway", "probe", "relay", "tunnel")


def main(words: "list[str]") -> int:
    """Run the program that the first word names with the other words, and return its exit code.

    Only that program's modules are imported: they have no byte code, because the host may have any Python.
    """
    if not words or words[0] not in PROGRAMS:
        sys.stderr.write("usage: host.pyz %s ...\n" % "|".join(PROGRAMS))
        return 2
    return int(importlib.import_module("hpk.host." + words[0]).main(words[1:]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
