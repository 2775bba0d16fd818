"""Runs inside a pod's job: volumes, containers, logs, restarts, probes, and the report to the kubelet.

`hpk.agent.boot` runs before the first container; everything else is imported while that starts.  All modules come from
one file (`hpk.agent.modules`).
"""
