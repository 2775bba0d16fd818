"""Started as ``python3 -I -S -X frozen_modules=on <lib>/hpk/agent/__main__.py key=value…`` (hpk.network.sandbox).

-I and -S keep ``site`` and the environment out, which costs 10 ms; so the path to the packages is set here.
This file is compiled anew at each start: it stays small.
"""

import sys

sys.path.append(__file__.removesuffix("/hpk/agent/__main__.py"))

from hpk.agent import main

main.entry()
