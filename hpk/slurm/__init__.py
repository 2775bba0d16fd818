"""Calls to Slurm, in the kubelet and in commands, through the gateway on the host. Nothing else calls Slurm."""
