"""Calls to Slurm, through the gateway on the host. Nothing else calls Slurm."""
