"""Slurm on Kubernetes: an operator for the resources of group slinky.slurm.net.

`kube` and `slurm` are the two interfaces to the outside, `runtime` runs controllers on top of them,
`api` holds the resources' types, `desired` builds objects without I/O, `controllers` reconcile.
"""

__version__ = "0.1.0"
