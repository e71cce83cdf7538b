"""Stands in for AWS: moto's server, an EKS whose clusters are real, and the checks that AWS makes and moto does not.

Not done here: moto does not enforce IAM policies, nothing is billed, networks carry no packets (a VPC is a record),
and nodes are no EC2 instances of moto (they are local nodes, known to EKS only).

`server` answers HTTP, `moto_cloud` runs moto so that it survives a kill, `guards` refuse what AWS refuses,
`eks` is the EKS API, `ebs` provisions volumes, `provider` is the Pulumi resource provider.
"""
