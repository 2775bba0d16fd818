"""Runs before the first container's process: makes the sandbox and asks crun for the containers.

Each of these modules stands between sbatch and the user's process.  So it imports nothing but the cheap part of the
standard library: no re, enum, typing, dataclasses, subprocess, json, socket or asyncio.  A unit test holds that.
``pause`` and ``seccomp`` are imported only for the pods that ask for them.
"""
