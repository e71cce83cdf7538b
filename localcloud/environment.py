"""The environment of the programs that the local cloud starts: where AWS, the state and the tools are."""

from __future__ import annotations

import os
import secrets
import sys
from pathlib import Path

from localcloud.paths import AWS_REGION, REPOSITORY, instance


def passphrase_file() -> Path:
    """The passphrase of the local stack's secrets: made once per instance, readable by its owner alone."""
    path = instance().state / "pulumi" / "passphrase"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(".new")
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_urlsafe(32))
        draft.rename(path)
    return path


def aws_environment() -> dict[str, str]:
    """Variables with which any AWS SDK talks to the stand-in, and only to it."""
    # The key is any text to the stand-in; the metadata service must not be asked on a machine that has one.
    return {
        "AWS_ENDPOINT_URL": instance().aws_url,
        "AWS_ACCESS_KEY_ID": "slipway-local",
        "AWS_SECRET_ACCESS_KEY": "slipway-local",
        "AWS_REGION": AWS_REGION,
        "AWS_DEFAULT_REGION": AWS_REGION,
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_PAGER": "",
    }


def program_environment(tools: Path) -> dict[str, str]:
    """The whole environment for the engine, kubectl, helm and aws: this process's own plus the instance's.

    tools: the folder with kubectl and helm.
    """
    environment = dict(os.environ)
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ROLE_ARN", "AWS_WEB_IDENTITY_TOKEN_FILE"):
        environment.pop(name, None)  # a real account's credentials must never meet the stand-in, nor the reverse
    environment.update(aws_environment())
    environment["KUBECONFIG"] = str(instance().kubeconfig)
    environment["PULUMI_BACKEND_URL"] = f"file://{instance().state / 'pulumi'}"
    environment["PULUMI_CONFIG_PASSPHRASE_FILE"] = str(passphrase_file())
    environment.pop("PULUMI_CONFIG_PASSPHRASE", None)
    path = [str(Path(sys.executable).parent), str(REPOSITORY / "localcloud" / "bin"), str(tools)]
    environment["PATH"] = os.pathsep.join([*path, environment.get("PATH", "")])
    return environment
