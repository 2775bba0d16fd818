"""Started as ``python3 -I -S <lib>/hpk/agent/__main__.py key=value…`` (hpk.network.sandbox).

-I and -S keep ``site`` and the environment out, which costs 10 ms; so the path to the packages is set here.
This file is compiled anew at each start: it stays small.
"""

import gc
import sys

gc.disable()  # what is imported stays: to look for garbage among it costs each pod 4 ms

library = __file__.removesuffix("/hpk/agent/__main__.py")
sys.path.append(library)

from hpk.agent import modules  # noqa: E402 - found through the line above

modules.install(modules.path(library))

from hpk.agent import main  # noqa: E402 - from the file, if there is one

main.entry()
