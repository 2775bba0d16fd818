"""Makes the sandbox and starts crun: before the first container's process, and again for each later start.

Each of these modules delays every pod, so it imports only cheap parts of the standard library: no re, enum, typing,
dataclasses, subprocess, json, socket or asyncio. A unit test checks this. ``pause`` and ``seccomp`` are imported only
for pods that need them.
"""
