"""Slurm: a client of slurmrestd, what it answers, and a cache of it."""
