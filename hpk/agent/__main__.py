"""Started as ``python3 -I -S <lib>/hpk/agent/__main__.py key=value…`` (hpk.network.sandbox).

-I and -S skip ``site`` and the environment, which saves 10 ms; so the path to the packages is set here.
This file is compiled at each start, so it stays small.
"""

import gc
import sys

gc.disable()  # modules stay, and looking for garbage among them costs each pod 4 ms

library = __file__.removesuffix("/hpk/agent/__main__.py")
sys.path.append(library)

from hpk.agent import modules  # noqa: E402 - found through the line above

modules.install(modules.path(library))

from hpk.agent import main  # noqa: E402 - from that file, if it exists

main.entry()
