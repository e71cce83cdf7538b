"""Secrets that a resource refers to. They are read, one by one, and never listed or watched."""

from __future__ import annotations

from slurm_operator.api.common import KeySelector
from slurm_operator.controllers.base import Waiting
from slurm_operator.desired.secrets import data_of
from slurm_operator.kube.client import KubeClient
from slurm_operator.kube.resources import CONFIGMAPS, SECRETS

LOOK_SECONDS = 10.0
"""How soon an edit of a Secret takes effect: nobody tells of it, so it is looked up this often."""
MISSING_SECONDS = 5.0


async def secret_value(kube: KubeClient, namespace: str, selector: KeySelector, where: str) -> bytes:
    """The value of a Secret's key. Raises Waiting, naming the field `where`, while it is not there."""
    found = await kube.get(SECRETS, namespace, selector.name)
    if found is None:
        raise Waiting("NoSecret", f"Secret {selector.name} does not exist ({where})", MISSING_SECONDS)
    value = data_of(found, selector.key)
    if not value:
        raise Waiting("NoSecret", f"Secret {selector.name} has no key {selector.key} ({where})", MISSING_SECONDS)
    return value


async def config_value(kube: KubeClient, namespace: str, selector: KeySelector, where: str) -> str:
    """The value of a ConfigMap's key. Raises Waiting, naming the field `where`, while it is not there."""
    found = await kube.get(CONFIGMAPS, namespace, selector.name)
    value = ((found or {}).get("data") or {}).get(selector.key)
    if not value:
        raise Waiting("NoConfigMap", f"ConfigMap {selector.name} has no key {selector.key} ({where})", MISSING_SECONDS)
    return str(value)
