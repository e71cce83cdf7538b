"""Stands in for Amazon EKS; its clusters and nodes are real Kubernetes on this machine.

What is not done: one cluster at a time per instance; the version asked for is recorded, the API server is always the
pinned local one; add-ons other than CoreDNS and the EBS CSI driver are recorded only (kube-proxy and pod networking
belong to the local nodes; pods get no AWS credentials from pod identity associations); Fargate, Auto Mode, outposts,
hybrid nodes, OIDC identity providers and insights are refused.
"""
