"""The client of the API server."""

from hpk.aio import lean

# The package `kubernetes` imports all its parts. The synchronous ones need requests, oauthlib, urllib3 and websocket:
# 8 MiB, and 70 ms of each command's start. Nothing here uses them.
lean.later(
    *(
        f"kubernetes.{part}"
        for part in ("client", "config", "dynamic", "informer", "leaderelection", "stream", "utils")
    ),
    *(f"kubernetes.{part}" for part in ("watch", "aio.dynamic", "aio.leaderelection", "aio.stream", "aio.watch")),
)
