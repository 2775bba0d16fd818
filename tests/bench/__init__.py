"""Benchmarks on the simulated cluster; ``make bench`` runs them all, ``make bench BENCH=NAME`` one."""
