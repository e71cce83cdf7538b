"""The two providers of a platform, made explicit so that nothing is ever deployed by an ambient one."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import pulumi
import pulumi_aws as aws
import pulumi_kubernetes as kubernetes
from pulumi.runtime import config as pulumi_config
from pydantic.alias_generators import to_camel

from components.settings import Problem, SettingsError
from components.settings.base import did_you_mean


def aws_provider(name: str, tags: dict[str, str]) -> aws.Provider:
    """AWS provider with every `aws:` key of the stack's config and default tags.

    An explicit provider sees nothing of the config by itself, so all keys are handed on. Tags of `aws:defaultTags`
    are kept beside ours. Raises SettingsError for a key that the provider does not know.
    """
    known = {to_camel(key): key for key in inspect.signature(aws.Provider._internal_init).parameters if key != "opts"}
    arguments: dict[str, Any] = {}
    problems: list[Problem] = []
    configured = {**pulumi_config.get_config_env(), **pulumi_config.CONFIG.get()}
    for full in sorted(key for key in configured if key.startswith("aws:")):
        key = full.removeprefix("aws:")
        if key not in known:
            hint = did_you_mean(key, known)
            problems.append(Problem((full,), "the AWS provider has no such key.", f"{hint}Remove it or correct it."))
        elif pulumi_config.is_config_secret(full):
            arguments[known[key]] = pulumi.Config("aws").require_secret(key)
        else:
            arguments[known[key]] = _plain(configured[full])
    if problems:
        raise SettingsError(problems, file=Path("stacks") / f"Pulumi.{pulumi.get_stack()}.yaml")
    own = arguments.pop("default_tags", None) or {}
    return aws.Provider(name, default_tags={"tags": {**own.get("tags", {}), **tags}}, **arguments)


def _plain(text: Any) -> Any:
    """A config value as Pulumi hands it over: scalars as text, lists and mappings as JSON."""
    if isinstance(text, str) and text[:1] in "[{":
        return json.loads(text)
    return text == "true" if text in ("true", "false") else text


def kubernetes_provider(
    name: str, cluster: aws.eks.Cluster, region: str, opts: pulumi.ResourceOptions
) -> kubernetes.Provider:
    """Provider for a cluster made in the same program.

    The kubeconfig holds no credentials: `aws eks get-token` asks for a fresh token as whoever runs Pulumi.
    cluster_identifier: without it a kubeconfig that is unknown in preview would replace the provider, and with it
    everything in the cluster.
    """
    return kubernetes.Provider(
        name,
        kubeconfig=kubeconfig(cluster, region),
        cluster_identifier=cluster.arn,
        opts=opts,
    )


def kubeconfig(cluster: aws.eks.Cluster, region: str) -> pulumi.Output[str]:
    """Kubeconfig (JSON) of an EKS cluster for whoever may call `aws eks get-token`."""
    return pulumi.Output.json_dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "eks",
            "clusters": [
                {
                    "name": "eks",
                    "cluster": {
                        "server": cluster.endpoint,
                        "certificate-authority-data": cluster.certificate_authority.data,
                    },
                }
            ],
            "contexts": [{"name": "eks", "context": {"cluster": "eks", "user": "eks"}}],
            "users": [
                {
                    "name": "eks",
                    "user": {
                        "exec": {
                            "apiVersion": "client.authentication.k8s.io/v1beta1",
                            "command": "aws",
                            "args": ["eks", "get-token", "--cluster-name", cluster.name, "--region", region],
                            "interactiveMode": "Never",
                        }
                    },
                }
            ],
        }
    )
