"""Configs that are refused, each with the whole text that the user reads."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

FILE = Path("stacks/Pulumi.test.yaml")
MINIMAL: dict[str, Any] = {
    "home": {"ephemeral": True},
    "partitions": [{"name": "debug", "instances": ["m7i.xlarge"], "nodes": {"min": 1, "max": 4}}],
}


def changed(**keys: Any) -> dict[str, Any]:
    return {**copy.deepcopy(MINIMAL), **keys}


def partition(**keys: Any) -> dict[str, Any]:
    return changed(partitions=[{**copy.deepcopy(MINIMAL["partitions"][0]), **keys}])


F = f"{FILE}: "
P = F + 'partitions[0] "debug"'
BAD: list[tuple[str, dict[str, Any], str]] = [
    (
        "unknown key",
        changed(partitons=[]),
        F + "partitons: there is no such key.\n"
        '  Did you mean "partitions"? '
        "Keys here: access, cluster, home, images, network, partitions, slurm, tags, users.",
    ),
    (
        "unknown key inside a list",
        partition(slurm={"maxtime": "30"}),
        P + " slurm.maxtime: there is no such key.\n"
        '  Did you mean "maxTime"? Keys here: default, maxTime, priorityTier.',
    ),
    (
        "missing key",
        {"home": {"ephemeral": True}},
        F + "partitions: this key is needed.\n  Add it: Slurm's partitions, each with its nodes.",
    ),
    (
        "wrong type",
        partition(nodes={"min": "1", "max": 4}),
        P + ' nodes.min: "1" is not a whole number.\n  Write a whole number: Nodes that always run.',
    ),
    (
        "wrong choice",
        changed(network={"nat": "perzone"}),
        F + 'network.nat: "perzone" is not allowed.\n  Did you mean "per-zone"? Allowed: per-zone or single.',
    ),
    (
        "out of range",
        partition(diskGiB=5),
        P + " diskGiB: 5 is out of range.\n  Write at least 20: Root volume (gp3) in GiB.",
    ),
    (
        "min above max",
        partition(nodes={"min": 5, "max": 4}),
        P + " nodes: min is 5 and max is 4.\n  min may not be above max.",
    ),
    (
        "mistyped instance type",
        partition(instances=["g6.xlagre"]),
        P + ' instances: there is no EC2 instance type "g6.xlagre".\n'
        '  Did you mean "g6.xlarge"? See components/data/instance_types.json for all that are known.',
    ),
    (
        "arm",
        partition(instances=["m7g.xlarge"]),
        P + " instances: m7g.xlarge has arm64 processors.\n  The images are built for x86_64: use such a type.",
    ),
    (
        "accelerators that are no NVIDIA GPUs",
        partition(instances=["trn1.2xlarge"]),
        P + " instances: trn1.2xlarge has neuron accelerators.\n  Only NVIDIA GPUs and plain CPU types are supported.",
    ),
    (
        "types that differ in GPUs",
        partition(instances=["g6.xlarge", "m7i.xlarge"]),
        P + ": g6.xlarge has 1 L4 and m7i.xlarge has no GPU.\n"
        "  The nodes of a partition must be alike: make two partitions.",
    ),
    (
        "types that differ in size",
        partition(instances=["m7i.xlarge", "m7i.2xlarge"]),
        P + ": m7i.xlarge has 4 CPUs and m7i.2xlarge has 8.\n"
        "  The nodes of a partition must be alike: use types of one size, or make two partitions.",
    ),
    (
        "more CPUs than a node has",
        partition(resources={"cpu": 64}),
        P + ": resources.cpu asks for 64 per node, m7i.xlarge has 4 CPUs of which 3.67 are free for Slurm.\n"
        "  Ask for at most 3.67, use a larger type, or leave cpu out to get the whole node.",
    ),
    (
        "more memory than a node has",
        partition(resources={"memory": "64Gi"}),
        P + ": resources.memory asks for 64Gi per node, m7i.xlarge has 16384 MiB of which 13650 MiB are free for Slurm."
        "\n  Ask for at most 13650Mi, use a larger type, or leave memory out to get the whole node.",
    ),
    (
        "more GPUs than a node has",
        partition(instances=["g6.xlarge"], resources={"gpus": 2}),
        P + ": resources.gpus asks for 2 per node, g6.xlarge has 1 L4.\n"
        "  Ask for no more than it has, or use a larger type.",
    ),
    (
        "GPUs of a type without",
        partition(resources={"gpus": 1}),
        P + ": resources.gpus asks for 1 per node, m7i.xlarge has no GPU.\n"
        "  Remove it, or use a GPU type such as g6.xlarge.",
    ),
    (
        "too small a type",
        partition(instances=["t3.nano"]),
        P + ": t3.nano is too small: nothing is left for Slurm.\n  Use a type with 2 CPUs and 2 GiB or more.",
    ),
    (
        "spot where there is none",
        partition(instances=["hpc7a.12xlarge"], capacity=["spot"]),
        P + ": hpc7a.12xlarge cannot be bought as spot.\n  Use capacity: [onDemand], or another type.",
    ),
    (
        "two kinds of capacity",
        partition(capacity=["spot", "onDemand"]),
        P + " capacity: there are 2 entries.\n  Write at most 1: How nodes are bought: `onDemand`, or `spot`, "
        "which AWS may take back with two minutes' notice.",
    ),
    (
        "name that Slurm or Kubernetes refuses",
        changed(partitions=[{**MINIMAL["partitions"][0], "name": "GPU_1"}]),
        F + 'partitions[0] "GPU_1" name: "GPU_1" cannot name a partition, a Kubernetes object and a host at once.\n'
        "  Use at most 30 small letters, digits and dashes, a letter first and no dash last.",
    ),
    (
        "reserved name",
        changed(partitions=[{**MINIMAL["partitions"][0], "name": "default"}]),
        F + 'partitions[0] "default" name: "default" is reserved: Slurm reads PartitionName=DEFAULT as the defaults of '
        "all partitions.\n  Choose another name.",
    ),
    (
        "time that is none",
        partition(slurm={"maxTime": "2 days"}),
        P + ' slurm.maxTime: "2 days" is no time limit that Slurm knows.\n'
        '  Write "30" (minutes), "12:00:00", "2-00:00:00" (days-hours:minutes:seconds) or "UNLIMITED".',
    ),
    (
        "time that YAML took for a number",
        partition(slurm={"maxTime": 43200}),
        P + ' slurm.maxTime: YAML reads it as the number 43200, and this is text.\n  Put it in quotes: "…".',
    ),
    (
        "two partitions of one name",
        changed(partitions=MINIMAL["partitions"] * 2),
        F + 'partitions[1] "debug" name: partition "debug" is in the list already.\n'
        "  Remove one of the two or rename it.",
    ),
    (
        "two default partitions",
        changed(
            partitions=[
                {**MINIMAL["partitions"][0], "name": name, "slurm": {"default": True}} for name in ("one", "two")
            ]
        ),
        F + 'partitions[1] "two" slurm.default: "one" is the default partition already.\n'
        "  Slurm has one: set default: true on one partition only.",
    ),
    (
        "zone outside the network",
        partition(zone="us-west-2d"),
        P + ' zone: zone "us-west-2d" is not one of network.zones.\n'
        "  Use one of us-west-2a, us-west-2b, or add it to network.zones.",
    ),
    (
        "one zone",
        changed(network={"zones": ["us-west-2a"]}),
        F + "network.zones: there is only 1 zone.\n  EKS needs two: add another, for example us-west-2b.",
    ),
    (
        "zone of another region",
        changed(network={"zones": ["us-west-2a", "us-east-1a"]}),
        F + 'network.zones[1]: "us-east-1a" is no availability zone of aws:region us-west-2.\n'
        "  Use names such as us-west-2a.",
    ),
    (
        "no network",
        changed(network={"cidr": "10.1.3.0/20"}),
        F + 'network.cidr: "10.1.3.0/20" is no network in CIDR notation.\n  Use 10.1.0.0/20.',
    ),
    (
        "network too small for the nodes",
        changed(
            network={"cidr": "10.1.0.0/24"},
            partitions=[{**MINIMAL["partitions"][0], "nodes": {"min": 0, "max": 20}}],
        ),
        F + "network.cidr: 10.1.0.0/24 gives zone us-west-2a 59 addresses, and its 23 nodes may take 276 (12 each, for "
        "the node and its pods).\n  Use a larger network (up to /16; each step up has twice as many), lower nodes.max, "
        "or move partitions to other zones.",
    ),
    (
        "network of services",
        changed(network={"cidr": "172.20.0.0/20"}),
        F
        + "network.cidr: 172.20.0.0/20 overlaps 10.100.0.0/16 or 172.20.0.0/16, from which EKS takes the addresses of "
        "services.\n  Use another network, for example 10.1.0.0/20.",
    ),
    (
        "API open to the world",
        changed(access={"apiFrom": ["0.0.0.0/0"]}),
        F + 'access.apiFrom: "0.0.0.0/0" opens the Kubernetes API to the whole internet.\n'
        "  List the networks of your offices, VPN or CI runners, /8 or smaller, or leave the list empty.",
    ),
    (
        "API from a private network",
        changed(access={"apiFrom": ["192.168.0.0/16"]}),
        F + "access.apiFrom[0]: 192.168.0.0/16 is a private network, which the internet does not carry.\n"
        "  List the public addresses that your network shows to the internet, for example 203.0.114.7/32.",
    ),
    (
        "session instead of role",
        changed(access={"admins": ["arn:aws:sts::123456789012:assumed-role/dev/me"]}),
        F + 'access.admins: "arn:aws:sts::123456789012:assumed-role/dev/me" is no ARN of an IAM role or user.\n'
        "  Write arn:aws:iam::<account>:role/<path and name>; for a session of an assumed role, its role.",
    ),
    (
        "Kubernetes that EKS has not",
        changed(cluster={"version": "1.29"}),
        F + 'cluster.version: Kubernetes "1.29" is not supported.\n'
        "  Use one of 1.36, 1.35: those are in EKS's standard support and tested.",
    ),
    (
        "version that YAML took for a number",
        changed(cluster={"version": 1.36}),
        F + 'cluster.version: YAML reads it as the number 1.36, and this is text.\n  Put it in quotes: "…".',
    ),
    (
        "system nodes with GPUs",
        changed(cluster={"systemNodes": {"instances": ["g6.xlarge"]}}),
        F + "cluster.systemNodes.instances: g6.xlarge has GPUs, which nothing on these nodes uses.\n"
        "  Use a type without, such as m7i.xlarge.",
    ),
    (
        "no system node",
        changed(cluster={"systemNodes": {"nodes": {"min": 0, "max": 1}}}),
        F + "cluster.systemNodes.nodes: min is 0.\n  The operator and Slurm's daemons need at least one node.",
    ),
    (
        "parameter that slipway sets",
        changed(slurm={"conf": {"AuthType": "auth/munge"}}),
        F + "slurm.conf: AuthType is set by slipway.\n  Remove it here; its value follows from the other keys.",
    ),
    (
        "parameter with a line of its own",
        changed(slurm={"conf": {"Prolog": "x\nSlurmUser=root"}}),
        F + 'slurm.conf: "Prolog" is no parameter of slurm.conf on one line.\n  Write Name: value, one line each.',
    ),
    (
        "two homes",
        changed(home={"ephemeral": True, "hostPath": "/home"}),
        F + "home: exactly one kind of home is needed.\n  Set one of nfs, claim, hostPath or ephemeral: true.",
    ),
    (
        "image that is none",
        changed(images={"overrides": {"slurmd": "slurmd"}}),
        F + 'images.overrides: "slurmd" is no full image reference.\n'
        "  Write registry/repository:tag or registry/repository@sha256:<digest>.",
    ),
    (
        "image that nobody uses",
        changed(images={"overrides": {"munge": "ghcr.io/x/munge:1"}}),
        F + 'images.overrides: there is no image "munge".\n'
        "  Images: slurmctld, slurmd, slurmdbd, slurmrestd, login, slurm-operator.",
    ),
    (
        "system account",
        changed(users=[{"name": "alice", "uid": 401}]),
        F + 'users[0] "alice" uid: 401 is out of range.\n'
        "  Write at least 1000: User id, 1000 to 60000; keep it for life, files belong to it.",
    ),
    (
        "two users of one uid",
        changed(users=[{"name": "alice", "uid": 2001}, {"name": "bob", "uid": 2001}]),
        F + 'users[1] "bob" uid: 2001 is the uid of "alice" already.\n'
        "  Give each user a uid of their own: who shares one shares all files and jobs.",
    ),
    (
        "private key",
        changed(users=[{"name": "alice", "uid": 2001, "sshKeys": ["-----BEGIN"]}]),
        F + 'users[0] "alice" sshKeys[0]: this is no SSH public key.\n'
        "  Paste the line of the .pub file: ssh-ed25519 AAAA… comment.",
    ),
    (
        "tag of AWS",
        changed(tags={"aws:x": "y"}),
        F + 'tags: "aws:x" cannot be used as a tag.\n'
        "  Keys have 1 to 128 letters and do not begin with aws: or slipway:, values have at most 256.",
    ),
    (
        "text where keys are wanted",
        changed(images="ghcr.io"),
        F + 'images: "ghcr.io" is not keys with values.\n'
        "  Write keys with values: Where the container images come from.",
    ),
]
