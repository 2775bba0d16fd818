"""The only HTTP to the API server."""

from hpk.aio import lean

# The package `kubernetes` imports all of itself. What is synchronous needs requests, oauthlib, urllib3 and websocket;
# nothing here uses it: 8 MiB, and 70 ms of each command's start.
lean.later(
    *(
        f"kubernetes.{part}"
        for part in ("client", "config", "dynamic", "informer", "leaderelection", "stream", "utils")
    ),
    *(f"kubernetes.{part}" for part in ("watch", "aio.dynamic", "aio.leaderelection", "aio.stream", "aio.watch")),
)
