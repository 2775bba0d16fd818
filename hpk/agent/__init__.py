"""The agent: runs a pod's containers inside its job, and reports to the kubelet.

It runs on the compute node, in the pod's sandbox, on hpk.sif's own Python. `hpk.agent.boot` is imported before the
first container; everything else is imported while that container starts. All modules come from one file
(`hpk.agent.modules`).
"""
