"""The only caller of Slurm, by way of the gateway on the host."""
