"""The local stand-ins: real Kubernetes on this machine, AWS by moto, and an engine that runs the Pulumi program."""
