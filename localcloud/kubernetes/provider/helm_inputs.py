"""The inputs of helm.v3.Release: which are served, what Check fills in, and the helm flags they become."""

from __future__ import annotations

import difflib
import hashlib
import json
from pathlib import Path
from typing import Any

import yaml

from localcloud.kubernetes.provider.check import Failure, Naming
from localcloud.kubernetes.provider.wire import ARCHIVE, ASSET, SIGNATURE, UNKNOWN, Object, get, has_unknown

DEFAULT_TIMEOUT = 300  # seconds, as the Pulumi plugin and helm have it

_STRINGS = {"name", "namespace", "chart", "version", "description", "keyring", "compat"}
_NUMBERS = {"timeout", "maxHistory"}
_BOOLEANS = {
    "allowNullValues",
    "atomic",
    "cleanupOnFail",
    "createNamespace",
    "dependencyUpdate",
    "devel",
    "disableOpenapiValidation",
    "disableWebhooks",
    "forceUpdate",
    "renderSubchartNotes",
    "resetValues",
    "reuseValues",
    "skipAwait",
    "skipCrds",
    "takeOwnership",
    "verify",
    "waitForJobs",
}
# Inputs of the plugin that are not served: setting one is an error that says so.
_REFUSED = {
    "postrender": "render what you need in the chart itself",
    "lint": "run `helm lint` in the project's checks",
    "replace": "give the release another name, or uninstall the old one",
    "recreatePods": "put a checksum of the configuration into the pod template's annotations",
    "disableCRDHooks": "use disableWebhooks to leave out all hooks",
    "manifest": "it is an output",
    "resourceNames": "it is an output",
    "status": "it is an output",
}
_OTHERS = {"repositoryOpts", "values", "valueYamlFiles", "checksum"}
_REPOSITORY = {"repo", "username", "password", "caFile", "certFile", "keyFile"}
# Not part of a chart's content, though they may lie in its folder.
_IGNORED = {".git", "__pycache__", ".DS_Store"}


def check(
    name: str, olds: Object, news: Object, naming: Naming, namespace: str, folder: Path
) -> tuple[Object, list[Failure]]:
    """The inputs as they will be stored, and what is wrong with them. `folder`: where relative paths start.

    Filled in: name, namespace, timeout, and for a local chart its version and a checksum of its files; so that a
    change of any file of the chart is a change of the release, which the Pulumi plugin sees by the version only.
    """
    inputs: Object = {key: value for key, value in news.items() if value is not None}
    inputs.pop("checksum", None)
    failures = [failure for key, value in inputs.items() for failure in _check_one(key, value)]
    if not inputs.get("name"):
        if olds.get("name"):
            inputs["name"] = olds["name"]
        elif naming.mode == "DISABLE":
            failures.append(("name", "must be given: the stack's configuration turns auto-naming off"))
        else:
            inputs["name"] = naming.proposed or f"{name}-{hashlib.sha256(naming.seed).hexdigest()[:8]}"
    if isinstance(inputs.get("name"), str) and len(inputs["name"]) > 53:
        failures.append(("name", f"{inputs['name']} has {len(inputs['name'])} letters; helm allows 53"))
    if not inputs.get("namespace"):
        inputs["namespace"] = namespace
    if not inputs.get("skipAwait"):
        inputs.setdefault("timeout", DEFAULT_TIMEOUT)
    if inputs.get("chart") is not UNKNOWN:
        failures += _check_chart(inputs, folder)
    failures += _check_files(inputs, folder)
    return inputs, failures


def _check_one(key: str, value: Any) -> list[Failure]:
    if key in _REFUSED:
        return [(key, f"is not served by this provider; {_REFUSED[key]}")] if value else []
    if value is UNKNOWN:
        return []
    if key in _STRINGS:
        return [] if isinstance(value, str) else [(key, f"must be a string, not {json.dumps(value)}")]
    if key in _NUMBERS:
        fits = isinstance(value, int) and not isinstance(value, bool) and value >= 0
        return [] if fits else [(key, f"must be a whole number, 0 or more, not {json.dumps(value)}")]
    if key in _BOOLEANS:
        return [] if isinstance(value, bool) else [(key, f"must be true or false, not {json.dumps(value)}")]
    if key == "values":
        return [] if isinstance(value, dict) else [(key, "must be a map")]
    if key == "repositoryOpts":
        wrong = sorted(set(value) - _REPOSITORY) if isinstance(value, dict) else ["(not a map)"]
        return [(key, f"has no {', '.join(wrong)}; allowed: {', '.join(sorted(_REPOSITORY))}")] if wrong else []
    if key in _OTHERS:
        return []
    known = sorted(_STRINGS | _NUMBERS | _BOOLEANS | {"repositoryOpts", "values", "valueYamlFiles"})
    near = difflib.get_close_matches(key, known, 1)
    hint = f"did you mean {near[0]}?" if near else f"allowed: {', '.join(known)}"
    return [(key, f"helm.v3.Release has no input {key}; {hint}")]


def local_chart(inputs: Object, folder: Path) -> Path | None:
    """The path of a chart that is a folder or a package on this machine; None for one from a repository."""
    chart = inputs.get("chart")
    if (
        not isinstance(chart, str)
        or chart.startswith("oci://")
        or "://" in chart
        or get(inputs, "repositoryOpts", "repo")
    ):
        return None
    path = folder / chart
    return path if path.exists() or chart.startswith((".", "/")) or chart.endswith(".tgz") else None


def _check_chart(inputs: Object, folder: Path) -> list[Failure]:
    if not inputs.get("chart"):
        return [("chart", "must be given: a folder, a .tgz package, oci://…, or a name with repositoryOpts.repo")]
    path = local_chart(inputs, folder)
    if path is None:
        return []
    if not path.exists():
        return [("chart", f"{inputs['chart']} does not exist (looked for {path})")]
    if path.is_dir():
        try:
            version = yaml.safe_load((path / "Chart.yaml").read_text())["version"]
        except OSError:
            return [("chart", f"{inputs['chart']} has no Chart.yaml, so it is not a chart")]
        except (yaml.YAMLError, KeyError, TypeError):
            return [("chart", f"{inputs['chart']}/Chart.yaml is not YAML with a version")]
        inputs["version"] = str(version)
    inputs["checksum"] = checksum(path)
    return []


def checksum(chart: Path) -> str:
    """A hash of all files of a chart: their paths and contents."""
    if chart.is_file():
        return hashlib.sha256(chart.read_bytes()).hexdigest()
    whole = hashlib.sha256()
    for path in sorted(chart.rglob("*")):
        relative = path.relative_to(chart)
        if path.is_file() and not _IGNORED.intersection(relative.parts):
            whole.update(f"{relative}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return whole.hexdigest()


def _check_files(inputs: Object, folder: Path) -> list[Failure]:
    """Give each values file its hash, which is what a later run compares."""
    files = inputs.get("valueYamlFiles")
    if files is None or has_unknown(files):
        return []
    if not isinstance(files, list):
        return [("valueYamlFiles", "must be a list of file assets")]
    failures: list[Failure] = []
    for index, asset in enumerate(files):
        try:
            digest = hashlib.sha256(read_asset(asset, folder)).hexdigest()
            files[index] = {**asset, "hash": digest}
        except ValueError as error:
            failures.append((f"valueYamlFiles[{index}]", str(error)))
    return failures


def read_asset(asset: Any, folder: Path) -> bytes:
    """The content of a file or string asset. Raises ValueError."""
    signature = asset.get(SIGNATURE) if isinstance(asset, dict) else None
    if signature == ARCHIVE:
        raise ValueError("is an archive; give a FileAsset or a StringAsset")
    if signature != ASSET:
        raise ValueError("is not an asset; give a FileAsset or a StringAsset")
    if asset.get("path"):
        try:
            return Path(folder, asset["path"]).read_bytes()
        except OSError as error:
            raise ValueError(f"{asset['path']}: {error.strerror}") from error
    if asset.get("uri"):
        raise ValueError("is a remote asset; give a FileAsset or a StringAsset")
    return str(asset.get("text") or "").encode()


def comparable(inputs: Object) -> Object:
    """The inputs with each values file as its hash alone: the same content under another path is no change."""
    files = inputs.get("valueYamlFiles")
    if not isinstance(files, list):
        return inputs
    hashes = [item.get("hash", item) if isinstance(item, dict) else item for item in files]
    return {**inputs, "valueYamlFiles": hashes}


def chart_flags(inputs: Object, folder: Path, chart: Path | None) -> list[str]:
    """The chart and where it comes from, as helm's arguments."""
    flags = [str(chart) if chart else inputs["chart"]]
    if inputs.get("version") and chart is None:
        flags += ["--version", inputs["version"]]
    options = inputs.get("repositoryOpts") or {}
    for key, flag in (("repo", "--repo"), ("username", "--username"), ("password", "--password")):
        if options.get(key):
            flags += [flag, options[key]]
    for key, flag in (("caFile", "--ca-file"), ("certFile", "--cert-file"), ("keyFile", "--key-file")):
        if options.get(key):
            flags += [flag, str(folder / options[key])]
    for key, flag in (("devel", "--devel"), ("dependencyUpdate", "--dependency-update"), ("verify", "--verify")):
        if inputs.get(key):
            flags.append(flag)
    if inputs.get("keyring"):
        flags += ["--keyring", inputs["keyring"]]
    return flags


def upgrade_flags(inputs: Object, major: int) -> list[str]:
    """The arguments of `helm upgrade` that the remaining inputs become. `major`: helm 3 and 4 name some differently."""
    flags: list[str] = []
    table = {
        "cleanupOnFail": "--cleanup-on-fail",
        "createNamespace": "--create-namespace",
        "disableOpenapiValidation": "--disable-openapi-validation",
        "disableWebhooks": "--no-hooks",
        "renderSubchartNotes": "--render-subchart-notes",
        "reuseValues": "--reuse-values",
        "skipCrds": "--skip-crds",
        "takeOwnership": "--take-ownership",
    }
    flags += [flag for key, flag in table.items() if inputs.get(key)]
    if not inputs.get("reuseValues"):
        flags.append("--reset-values")  # the program's values are all of them
    if inputs.get("forceUpdate"):
        flags += ["--force-replace", "--server-side=false"] if major >= 4 else ["--force"]
    if inputs.get("maxHistory") is not None:
        flags += ["--history-max", str(inputs["maxHistory"])]
    if inputs.get("description"):
        flags += ["--description", inputs["description"]]
    return flags
