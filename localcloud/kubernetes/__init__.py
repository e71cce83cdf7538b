"""Real Kubernetes on this machine: etcd, API server, controllers, scheduler, and nodes with kubelet and containerd.

Stands in for the control plane and the instances of Amazon EKS. The control plane runs as processes of the host,
each node in namespaces of its own. What differs from EKS: pods reach the host and each other but not the internet,
there are no load balancers and no network policies, and every node reports the whole machine as its capacity.

An existing cluster (kind, k3d, …) is used instead when $SLIPWAY_KUBECONFIG names its kubeconfig: what starts here is
the way to it (`existing`), its nodes and its DNS are taken as they are, and commands that would switch a node fail.

The modules, from the outside in: `cluster` (what others call), `nodes` and `node` (all of them, one of them) with
`specs`, `nodefiles` and `template`, `controlplane`, `registry`, `addons`, `preflight` (what a machine must have) and
`leftovers` (what an instance has on it); `existing` and `chores` for clusters of others; below them `processes` and
`cgroups`, `network`, `pki`, `api`, `locks`.
"""
