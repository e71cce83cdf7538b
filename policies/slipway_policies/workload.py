"""Pods: which image, with what rights, with how much, where, and whether anybody knows that they work."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from pulumi_policy import Severity

from .busy_pods import chart_name
from .pods import RELEASE, WORKLOADS, chart_pods, containers, gpus, pod_spec
from .rule import Finding, Parameter, Resource, Rule
from .values import UNKNOWN, at, from_json, items, mapping, texts, walk

NAMESPACE = "kubernetes:core/v1:Namespace"
DEPLOYMENT = "kubernetes:apps/v1:Deployment"
SERVING = f"{DEPLOYMENT}|kubernetes:apps/v1:StatefulSet"
DAEMON_SET = "kubernetes:apps/v1:DaemonSet"
ADDON = "aws:eks/addon:Addon"
GPU = "nvidia.com/gpu"
PINNED_TAG = r".*[-_.][0-9a-f]{12,64}"
ENFORCE = "pod-security.kubernetes.io/enforce"
POWERS = {"SYS_ADMIN", "NET_ADMIN", "SYS_PTRACE", "SYS_MODULE", "BPF", "ALL"}
OUR_CHARTS = {"slurm", "slurm-operator"}


def check_image(resource: Resource) -> Iterator[str]:
    """Images of containers, and `{repository, tag, digest}` in the values of our charts."""
    tags = re.compile(resource.parameters["tagPattern"])
    if resource.kind != RELEASE:
        for container in containers(pod_spec(resource)):
            image = container.get("image")
            if isinstance(image, str) and "@sha256:" not in image:
                name, _, tag = image.rpartition("/")[2].partition(":")
                if not tags.fullmatch(tag):
                    yield f"{resource.title} runs {name}:{tag or 'latest'}, which may be another image tomorrow."
        return
    if chart_name(resource.inputs.get("chart")) not in OUR_CHARTS:
        return
    for path, value in walk(resource.inputs.get("values")):
        if "repository" not in value or UNKNOWN in (value.get("tag"), value.get("digest")) or value.get("digest"):
            continue
        tag = value.get("tag") or "its default"
        if not isinstance(tag, str) or not tags.fullmatch(tag):
            yield f"{resource.title} sets {'.'.join(path)} to tag {tag}, which may be another image tomorrow."


def check_rights(resource: Resource) -> Iterator[str]:
    """Whatever lets a pod out of its confinement."""
    if at(resource.inputs, "metadata", "namespace") in (*texts(resource.parameters["namespaces"]), UNKNOWN):
        return
    spec = pod_spec(resource)
    for key in ("hostNetwork", "hostPID", "hostIPC"):
        if spec.get(key) is True:
            yield f"{resource.title} has {key}."
    for volume in items(spec.get("volumes")):
        if path := at(volume, "hostPath", "path"):
            yield f"{resource.title} mounts {path} of the node."
    for container in containers(spec):
        security = mapping(container.get("securityContext"))
        if security.get("privileged") is True:
            yield f"{resource.title} runs container {container.get('name')} privileged."
        if powers := POWERS & set(texts(at(security, "capabilities", "add"))):
            yield f"{resource.title} gives container {container.get('name')} {', '.join(sorted(powers))}."


def check_namespace(resource: Resource) -> Iterator[Finding | str]:
    """The Pod Security level that a namespace enforces."""
    labels, name = at(resource.inputs, "metadata", "labels"), at(resource.inputs, "metadata", "name")
    level = at(labels, ENFORCE)
    if level is UNKNOWN:
        return
    if level is None:
        yield f"{resource.title} enforces no Pod Security level."
    elif level == "privileged" and name not in texts(resource.parameters["privileged"]):
        yield f"{resource.title} allows privileged pods."


def check_resources(resource: Resource) -> Iterator[str]:
    """What each container asks for: cores and memory, and an end to its memory."""
    if resource.kind == RELEASE:
        if chart_name(resource.inputs.get("chart")) == "slurm":
            for pod in chart_pods(resource):
                yield from _unsized(f"{resource.title}, {pod.where},", pod.container.get("resources"))
        return
    for container in containers(pod_spec(resource)):
        yield from _unsized(f"{resource.title}, container {container.get('name')},", container.get("resources"))


def _unsized(title: str, resources: Any) -> Iterator[str]:
    if resources is UNKNOWN:
        return
    wanted = [("requests", "cpu"), ("requests", "memory"), ("limits", "memory")]
    absent = [
        f"{part}.{what}"
        for part, what in wanted
        # A limit is also the request, unless there is another.
        if at(resources, part, what) is None and not (part == "requests" and at(resources, "limits", what))
    ]
    if absent:
        yield f"{title} has no {' and no '.join(absent)}."


def check_probes(resource: Resource) -> Iterator[str]:
    """Whether Kubernetes can know that a service works."""
    for container in items(pod_spec(resource).get("containers")):
        if at(container, "readinessProbe") is None:
            yield f"{resource.title}, container {at(container, 'name')}, has no readinessProbe."


def check_tolerations(resource: Resource) -> Iterator[str]:
    """Pods that tolerate the taint of GPU nodes, or every taint, and ask for no GPU."""
    if resource.kind == ADDON:
        for path, value in walk(from_json(resource.inputs.get("configurationValues"))):
            # Agents on each node have to tolerate everything; controllers of the same add-on must not.
            if not {"node", "daemonset", "agent"} & {step.lower() for step in path} and (said := _lands(value)):
                yield f"{resource.title}{''.join('.' + step for step in path)} {said}."
    elif resource.kind == RELEASE:
        name = chart_name(resource.inputs.get("chart"))
        if name == "slurm-operator" and (said := _lands(mapping(resource.inputs.get("values")))):
            yield f"{resource.title} {said}."
        for pod in chart_pods(resource) if name == "slurm" else ():
            if not gpus(pod.container) and (said := _lands(pod.spec)):
                yield f"{resource.title}, {pod.where}, {said}."
    else:
        spec = pod_spec(resource)
        if not any(map(gpus, containers(spec))) and (said := _lands(spec)):
            yield f"{resource.title} {said}."


def _lands(spec: dict[str, Any]) -> str | None:
    for toleration in items(spec.get("tolerations")):
        key = at(toleration, "key")
        if key == GPU:
            return f"tolerates {GPU} and asks for no GPU"
        if not key and key is not UNKNOWN and at(toleration, "operator") == "Exists":
            return "tolerates every taint"
    return None


def check_gpu_pods(resource: Resource) -> Iterator[str]:
    """Pods that ask for GPUs and tolerate no taint of GPU nodes."""
    if resource.kind == RELEASE:
        pods = list(chart_pods(resource)) if chart_name(resource.inputs.get("chart")) == "slurm" else []
        found = [(f"{resource.title}, {pod.where},", pod.spec) for pod in pods if gpus(pod.container)]
    else:
        spec = pod_spec(resource)
        found = [(resource.title, spec)] if any(map(gpus, containers(spec))) else []
    for title, spec in found:
        tolerations = spec.get("tolerations")
        keys = [at(toleration, "key") for toleration in items(tolerations)]
        if tolerations is not UNKNOWN and not any(key in (GPU, None, UNKNOWN) for key in keys):
            yield f"{title} asks for GPUs and does not tolerate {GPU}."


def _pod(kind: str = DEPLOYMENT, namespace: str = "web", **spec: Any) -> tuple[str, dict[str, Any]]:
    return kind, {"metadata": {"namespace": namespace}, "spec": {"template": {"spec": spec}}}


ALL = f"{WORKLOADS}|{RELEASE}"
NOT_DAEMONS = "|".join(kind for kind in ALL.split("|") if kind != DAEMON_SET)
RULES = (
    Rule(
        id="image-pinned",
        severity=Severity.HIGH,
        kinds=ALL,
        summary="Images are named by digest, or by a tag that has a hash of their content.",
        why="A tag such as `latest` or `26.05` moves. Two workers that start a week apart then run "
        "different software, and "
        "nobody can say which.",
        consequence="A node that starts tomorrow may run another Slurm, or another MPI, than the "
        "rest of its partition.",
        remediation="Name the image by @sha256:…, or by a tag that ends in a hash of what it was built from.",
        example=_pod(containers=[{"name": "exporter", "image": "registry.example.com/exporter:v1"}]),
        check=check_image,
        parameters={"tagPattern": Parameter(PINNED_TAG, "Regular expression of tags that count as pinned.")},
    ),
    Rule(
        id="no-privileged-pods",
        severity=Severity.CRITICAL,
        kinds=WORKLOADS,
        summary="Only workers may be privileged, and only in their own namespace.",
        why="slurmd needs privileges to confine jobs by cgroups. For anything else they are a way "
        "out of the container.",
        consequence="Whoever gets into the pod is root on the node, and has the secrets of all pods on it.",
        remediation="Remove privileged, host namespaces, host paths and added capabilities.",
        example=_pod(hostNetwork=True, containers=[{"name": "web"}]),
        check=check_rights,
        parameters={"namespaces": Parameter(["slurm", "kube-system"], "Namespaces of workers and of agents on nodes.")},
    ),
    Rule(
        id="namespace-has-pod-security",
        severity=Severity.HIGH,
        kinds=re.escape(NAMESPACE),
        summary="Every namespace enforces a Pod Security level; privileged only that of the workers.",
        why="Policies see what a program makes. The namespace's level also holds for what somebody applies by hand. "
        "https://kubernetes.io/docs/concepts/security/pod-security-admission/",
        consequence="Anybody who may make pods there may make a privileged one, and is root on the node.",
        remediation=f"Set the label {ENFORCE} to restricted, or to baseline.",
        example=(NAMESPACE, {"metadata": {"name": "monitoring"}}),
        check=check_namespace,
        parameters={"privileged": Parameter(["slurm"], "Namespaces that may allow privileged pods.")},
    ),
    Rule(
        id="pod-has-resources",
        severity=Severity.MEDIUM,
        kinds=ALL,
        summary="Every container asks for cores and memory, and its memory has an end.",
        why="Without requests a pod may be put on a node that has no room for it; without a limit "
        "one leak takes the node. "
        "Slurm reads from the limits of a worker how much it may give to jobs.",
        consequence="The kernel kills whatever is largest when memory runs out: slurmctld, or somebody's job.",
        remediation="Set resources.requests.cpu, requests.memory and limits.memory.",
        example=_pod(containers=[{"name": "web", "resources": {"requests": {"cpu": "1"}}}]),
        check=check_resources,
    ),
    Rule(
        id="service-has-readiness-probe",
        severity=Severity.LOW,
        kinds=SERVING,
        summary="What serves others says when it is ready.",
        why="Without a probe a pod counts as ready as soon as its process exists, and a rollout goes "
        "on past a broken one.",
        consequence="A broken version replaces all working ones before anybody notices.",
        remediation="Add a readinessProbe to each container.",
        example=_pod(containers=[{"name": "web"}]),
        check=check_probes,
    ),
    Rule(
        id="gpu-nodes-only-for-gpu-pods",
        severity=Severity.HIGH,
        kinds=f"{NOT_DAEMONS}|{re.escape(ADDON)}",
        summary="Only pods that ask for GPUs tolerate the taint of GPU nodes.",
        why="A toleration of everything is the usual way to make a pod start somewhere. GPU nodes "
        "are then somewhere, too. "
        "Agents that have to be on every node (DaemonSets) are left alone.",
        consequence="A controller that lands on a GPU node keeps it alive, and paid for, when no job is left on it.",
        remediation="Tolerate named taints only, such as CriticalAddonsOnly.",
        example=_pod(tolerations=[{"operator": "Exists"}], containers=[{"name": "web"}]),
        check=check_tolerations,
    ),
    Rule(
        id="gpu-pod-tolerates-gpu-nodes",
        severity=Severity.MEDIUM,
        kinds=ALL,
        summary="Pods that ask for GPUs tolerate the taint of GPU nodes.",
        why="GPU nodes are tainted, so a pod that needs one and does not say so fits nowhere.",
        consequence="The pod waits for ever, and the autoscaler sees no node that would help.",
        remediation=f"Add a toleration: key: {GPU}, operator: Exists, effect: NoSchedule.",
        example=_pod(containers=[{"name": "train", "resources": {"limits": {GPU: 1}}}]),
        check=check_gpu_pods,
    ),
)
