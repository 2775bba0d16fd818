"""A Slurm cluster on one machine: three hosts as namespaces, with real daemons. Standard library only."""
