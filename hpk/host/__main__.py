"""Runs one of the host's programs by its name: ``python3 host.pyz gateway SOCKET``."""

import importlib
import sys

PROGRAMS = ("gateway", "probe", "relay", "tunnel")

if len(sys.argv) < 2 or sys.argv[1] not in PROGRAMS:  # noqa: PLR2004 - a name
    sys.exit("usage: host.pyz %s ..." % "|".join(PROGRAMS))
# Import only this program's modules. They have no byte code, because the host may have any Python.
sys.exit(importlib.import_module("hpk.host." + sys.argv[1]).main(sys.argv[2:]))
