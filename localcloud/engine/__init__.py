"""Stands in for the pulumi CLI: runs the unmodified Pulumi program where no CLI is on PATH.

Real: Pulumi's gRPC protocols (resource monitor, engine, provider, analyzer, callbacks), so the program, the provider
plugins and the policy packs are the same processes either way, and the state file is Pulumi's checkpoint, version 3.
Not done, refused with a message that says so: resource hooks, state migrations, stack references, parameterized
packages, archives, secrets providers other than the passphrase, targeted runs, saved plans.
"""
