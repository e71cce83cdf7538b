"""Pure functions from what was asked and what it refers to, to what Kubernetes and Slurm should hold."""
