"""Real Kubernetes on this machine: etcd, API server, controllers, scheduler, and nodes with kubelet and containerd.

Stands in for the control plane and the instances of Amazon EKS. The control plane runs as processes of the host,
each node in namespaces of its own. What differs from EKS: pods reach the host and each other but not the internet,
there are no load balancers and no network policies, and every node reports the whole machine as its capacity.
"""
