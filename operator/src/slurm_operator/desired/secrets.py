"""Secrets that are made once and never again: keys of a cluster, host keys of a login service, tokens.

They have no owner: a Controller or LoginSet that is deleted and made anew finds its keys, and with them its users.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Mapping

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from slurm_operator.api.names import LABEL_CLUSTER, LABEL_MANAGED_BY, MANAGED_BY
from slurm_operator.desired.sshd import HOST_KEY_TYPES
from slurm_operator.kube.resources import Object

SLURM_KEY_BYTES = 1024
JWT_KEY_BYTES = 32
_RSA_BITS = 3072


def secret(name: str, namespace: str, cluster: str, data: Mapping[str, bytes], *, immutable: bool = True) -> Object:
    """A Secret with binary data. Immutable ones cannot be changed by mistake, only deleted."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "Opaque",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {LABEL_MANAGED_BY: MANAGED_BY, LABEL_CLUSTER: cluster},
        },
        "immutable": immutable,
        "data": {key: base64.b64encode(value).decode() for key, value in data.items()},
    }


def new_slurm_key() -> bytes:
    """A key for auth/slurm (at least 16 bytes, as Slurm wants, and far more)."""
    return secrets.token_bytes(SLURM_KEY_BYTES)


def new_jwt_key() -> bytes:
    """A key for HS256."""
    return secrets.token_bytes(JWT_KEY_BYTES)


def new_host_keys(comment: str) -> dict[str, bytes]:
    """OpenSSH host keys of all types in use: file name -> content."""
    files: dict[str, bytes] = {}
    for kind in HOST_KEY_TYPES:
        key = _private_key(kind)
        files[f"ssh_host_{kind}_key"] = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
        )
        public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
        files[f"ssh_host_{kind}_key.pub"] = public + f" {comment}\n".encode()
    return files


def _private_key(kind: str) -> ed25519.Ed25519PrivateKey | ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey:
    match kind:
        case "ed25519":
            return ed25519.Ed25519PrivateKey.generate()
        case "ecdsa":
            return ec.generate_private_key(ec.SECP256R1())
        case "rsa":
            return rsa.generate_private_key(public_exponent=65537, key_size=_RSA_BITS)
    raise ValueError(f"{kind}: a host key of type {', '.join(HOST_KEY_TYPES)} is wanted")


def data_of(obj: Object, key: str) -> bytes | None:
    """A Secret's value; None when it has no such key."""
    text = (obj.get("data") or {}).get(key)
    return None if text is None else base64.b64decode(text)
