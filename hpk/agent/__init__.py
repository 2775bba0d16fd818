"""Runs inside a pod's job: volumes, containers, logs, restarts, probes, and the report to the kubelet.

All come from one file (`hpk.agent.modules`).  The modules that stand between sbatch and the user's process (``main``,
``sandbox``, ``volumes``, ``images``, ``cgroup``, ``etc``, ``oci``, ``users``, ``inroot``, ``linux``, ``output``,
``processes``, ``quickjson``, ``runs``) import nothing but the cheap part of the standard library: no re, enum, typing,
dataclasses, subprocess, json, socket or asyncio.  A unit test holds that.  Everything else is imported while the first
container starts.
"""
