"""The provider's own configuration: what it allows, what a change of it means, and what is read from it."""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from localcloud.kubernetes.provider import auth
from localcloud.kubernetes.provider.wire import UNKNOWN, Object, has_unknown

# Key -> (type, environment variable that stands in for an absent key). The keys are those of pulumi_kubernetes 4.34.
_KEYS: dict[str, tuple[str, str | None]] = {
    "kubeconfig": ("kubeconfig", None),
    "context": ("string", None),
    "cluster": ("string", None),
    "clusterIdentifier": ("string", None),
    "namespace": ("string", None),
    "deleteUnreachable": ("boolean", "PULUMI_K8S_DELETE_UNREACHABLE"),
    "skipUpdateUnreachable": ("boolean", "PULUMI_K8S_SKIP_UPDATE_UNREACHABLE"),
    "enableConfigMapMutable": ("boolean", "PULUMI_K8S_ENABLE_CONFIGMAP_MUTABLE"),
    "enableSecretMutable": ("boolean", "PULUMI_K8S_ENABLE_SECRET_MUTABLE"),
    "enablePatchForce": ("boolean", "PULUMI_K8S_ENABLE_PATCH_FORCE"),
    "upsertExistingObjects": ("boolean", "PULUMI_K8S_UPSERT_EXISTING_OBJECTS"),
    "enableServerSideApply": ("boolean", "PULUMI_K8S_ENABLE_SERVER_SIDE_APPLY"),
    # These two only silence warnings that this provider never gives.
    "suppressDeprecationWarnings": ("boolean", None),
    "suppressHelmHookWarnings": ("boolean", None),
    "helmReleaseSettings": ("object", None),
    "kubeClientSettings": ("object", None),
    "renderYamlToDirectory": ("string", None),
    "alwaysRender": ("boolean", None),
}
_HELM_KEYS = ("driver", "pluginsPath", "registryConfigPath", "repositoryCache", "repositoryConfigPath")
_CLIENT_KEYS = ("qps", "burst", "timeout")
# Written by the engine and by the SDK, not by the user.
_ENGINE_KEYS = ("version", "pluginDownloadURL")

Failure = tuple[str, str]


@dataclass(frozen=True)
class HelmSettings:
    """Where helm keeps its own files; None leaves helm's default."""

    plugins_path: str | None = None
    registry_config_path: str | None = None
    repository_cache: str | None = None
    repository_config_path: str | None = None


@dataclass(frozen=True)
class Settings:
    """The configuration of one provider instance."""

    kubeconfig: str | None = None
    kubeconfig_unknown: bool = False
    context: str | None = None
    cluster: str | None = None
    namespace: str | None = None
    delete_unreachable: bool = False
    skip_update_unreachable: bool = False
    config_map_mutable: bool = False
    secret_mutable: bool = False
    patch_force: bool = False
    upsert: bool = False
    timeout: float | None = None
    helm: HelmSettings = field(default_factory=HelmSettings)


def check(news: Object) -> tuple[Object, list[Failure]]:
    """The configuration as it will be stored, and what is wrong with it as (key, reason)."""
    inputs = dict(news)
    failures: list[Failure] = []
    for key, value in news.items():
        if key in _ENGINE_KEYS or key.startswith("__") or value is None or has_unknown(value):
            continue
        if key not in _KEYS:
            near = difflib.get_close_matches(key, _KEYS, 1)
            hint = f"did you mean {near[0]}? Allowed: " if near else "allowed: "
            failures.append((key, f"the kubernetes provider has no setting {key}; {hint}{', '.join(sorted(_KEYS))}"))
            continue
        try:
            inputs[key] = _normal(key, value)
        except ValueError as error:
            failures.append((key, str(error)))
    if not failures:
        failures += _refused(inputs)
    return inputs, failures


def _normal(key: str, value: Any) -> Any:
    """Booleans and objects come as JSON texts from the SDKs; they are stored as such, as the plugin stores them."""
    kind = _KEYS[key][0]
    if kind == "kubeconfig":
        text = json.dumps(value) if isinstance(value, dict) else value
        if not isinstance(text, str):
            raise ValueError("kubeconfig must be the text of a kubeconfig, the path of one, or an object")
        return text
    if kind == "string" and not isinstance(value, str):
        raise ValueError(f"{key} must be a string, not {json.dumps(value)}")
    if kind == "boolean":
        _boolean(key, value)
    if kind == "object":
        _members(key, value)
    return value


def _boolean(key: str, value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in ("true", "1", "false", "0", ""):
        return value.lower() in ("true", "1")
    raise ValueError(f"{key} must be true or false, not {json.dumps(value)}")


def _members(key: str, value: Any) -> Object:
    allowed = _HELM_KEYS if key == "helmReleaseSettings" else _CLIENT_KEYS
    try:
        members = json.loads(value) if isinstance(value, str) else value
    except ValueError:
        members = None
    if not isinstance(members, dict):
        raise ValueError(f"{key} must be an object with {', '.join(allowed)}")
    for name in members:
        if name not in allowed:
            raise ValueError(f"{key} has no {name}; allowed: {', '.join(allowed)}")
    return members


def _refused(inputs: Object) -> list[Failure]:
    """Settings whose meaning this provider does not have: silently ignoring them would deceive."""
    failures: list[Failure] = []
    apply = inputs.get("enableServerSideApply")
    if apply is not None and apply is not UNKNOWN and not _boolean("enableServerSideApply", apply):
        failures.append(("enableServerSideApply", "this provider always applies on the server; remove the setting"))
    if inputs.get("renderYamlToDirectory"):
        failures.append(("renderYamlToDirectory", "this provider does not render YAML; use the Pulumi plugin for that"))
    render = inputs.get("alwaysRender")
    if render is not None and render is not UNKNOWN and _boolean("alwaysRender", render):
        failures.append(("alwaysRender", "this provider does not render YAML; use the Pulumi plugin for that"))
    helm = inputs.get("helmReleaseSettings")
    if helm and not has_unknown(helm):
        driver = _members("helmReleaseSettings", helm).get("driver")
        if driver not in (None, "", "secret", "secrets"):
            failures.append(
                (
                    "helmReleaseSettings",
                    f"driver {driver}: releases are kept in Secrets only (driver secret)",
                )
            )
    kubeconfig = inputs.get("kubeconfig")
    # A path may name a file that this very run will write; a text is there to be read.
    inline = isinstance(kubeconfig, str) and ("\n" in kubeconfig or kubeconfig.lstrip().startswith("{"))
    if inline and not any(inputs.get(key) is UNKNOWN for key in ("context", "cluster")):
        try:
            auth.load(kubeconfig, inputs.get("context"), inputs.get("cluster"))
        except auth.AuthError as error:
            failures.append(("kubeconfig", str(error)))
    return failures


@dataclass(frozen=True)
class ConfigDiff:
    """Which keys changed, and which of them make it another cluster."""

    changed: list[str]
    replaces: Sequence[str]


def diff(olds: Object, news: Object) -> ConfigDiff:
    """What a change of the configuration means.

    A `clusterIdentifier` decides alone whether it is another cluster, when both sides have one. Without it the
    settings of the active cluster decide, and one that is unknown counts as another (that is why to set it).
    """
    changed = sorted(key for key in {*olds, *news} if olds.get(key) != news.get(key) and not key.startswith("__"))
    if not changed:
        return ConfigDiff([], [])
    old_id, new_id = olds.get("clusterIdentifier"), news.get("clusterIdentifier")
    if old_id and new_id:
        return ConfigDiff(changed, ["clusterIdentifier"] if old_id != new_id else [])
    chooses = [key for key in ("kubeconfig", "context", "cluster") if key in changed]
    unknown = [key for key in chooses if news.get(key) is UNKNOWN]
    if unknown:
        return ConfigDiff(changed, unknown)
    if chooses:
        old_cluster, new_cluster = _active_cluster(olds), _active_cluster(news)
        if old_cluster and new_cluster and old_cluster != new_cluster:
            return ConfigDiff(changed, chooses)
    return ConfigDiff(changed, [])


def _active_cluster(inputs: Object) -> auth.Cluster | None:
    text = inputs.get("kubeconfig")
    try:
        config = auth.load(text if isinstance(text, str) else None, inputs.get("context"), inputs.get("cluster"))
    except auth.AuthError:
        return None
    return replace(config.cluster, name="")


def settings(inputs: Object) -> Settings:
    """What the checked configuration says, with the environment where it is silent."""

    def flag(key: str) -> bool:
        value = inputs.get(key)
        if value is UNKNOWN:
            return False
        if value is None:
            value = os.environ.get(_KEYS[key][1] or "", "")
        return _boolean(key, value)

    def text(key: str) -> str | None:
        value = inputs.get(key)
        return value if isinstance(value, str) and value else None

    helm_value = inputs.get("helmReleaseSettings")
    helm = _members("helmReleaseSettings", helm_value) if helm_value and not has_unknown(helm_value) else {}
    client_value = inputs.get("kubeClientSettings")
    client = _members("kubeClientSettings", client_value) if client_value and not has_unknown(client_value) else {}
    return Settings(
        kubeconfig=text("kubeconfig"),
        kubeconfig_unknown=any(inputs.get(key) is UNKNOWN for key in ("kubeconfig", "context", "cluster")),
        context=text("context"),
        cluster=text("cluster"),
        namespace=text("namespace"),
        delete_unreachable=flag("deleteUnreachable"),
        skip_update_unreachable=flag("skipUpdateUnreachable"),
        config_map_mutable=flag("enableConfigMapMutable"),
        secret_mutable=flag("enableSecretMutable"),
        patch_force=flag("enablePatchForce"),
        upsert=flag("upsertExistingObjects"),
        timeout=float(client["timeout"]) if client.get("timeout") else None,
        helm=HelmSettings(
            plugins_path=helm.get("pluginsPath"),
            registry_config_path=helm.get("registryConfigPath"),
            repository_cache=helm.get("repositoryCache"),
            repository_config_path=helm.get("repositoryConfigPath"),
        ),
    )
