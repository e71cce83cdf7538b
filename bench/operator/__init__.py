"""How fast an operator is: real etcd, API server, slurmctld and slurmrestd; simulated kubelets, slurmd and jobs."""
