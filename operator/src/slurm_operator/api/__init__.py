"""The resources of `slinky.slurm.net/v1beta1`: types, names, and the CRDs made from them."""
