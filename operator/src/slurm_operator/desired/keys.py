"""The keys of a cluster as its daemons read them, and how a new one takes the place of the old.

auth/slurm reads slurm.jwks: several keys, one of which signs (`"use": "default"`) while all are accepted. Only
slurmctld, slurmd, sackd and slurmdbd hold keys; slurmstepd and the commands ask the daemon beside them, so running jobs
are not concerned. A rotation takes three steps, each ending with a reconfigure that makes every daemon read the file
again: the new key is accepted; the new key signs; the old key is gone.

auth/jwt knows one HS256 key: a new one ends all older tokens at once, and no step can soften that.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from slurm_operator.api.names import APP_CONTROLLER, JWT_KEY, SLURM_JWKS, SLURM_KEY, keys_secret
from slurm_operator.desired.parts import Cluster, labels, meta
from slurm_operator.kube.objects import annotations_of, canonical_hash
from slurm_operator.kube.resources import Object

ANNOTATION_SINCE = "slipway.dev/keys-since"
ANNOTATION_LOADED = "slipway.dev/keys-loaded"

DELIVERY_SECONDS = 30.0
"""From the moment all pods were told to look until it is taken that they did: kubelets need one or two."""
CALM_SECONDS = 10.0
"""After a reconfigure: every slurmd has started itself anew and was asked by slurmctld."""
_MIN_KEY_BYTES = 16


class BadKey(ValueError):
    """A key that Slurm would refuse."""


@dataclass(frozen=True)
class Ring:
    """`keys`: id -> key, in the order they came; `default` signs. `since`: when it became so (Unix time).

    `loaded`: when the daemons were told to read it, 0.0 while they have not been.
    """

    keys: Mapping[str, bytes]
    default: str
    since: float = 0.0
    loaded: float = 0.0

    @property
    def rotating(self) -> bool:
        return len(self.keys) > 1


def key_id(key: bytes) -> str:
    """Public name of a key: it is in the head of each token that the key signs."""
    return hashlib.sha256(b"slipway key id" + key).hexdigest()[:16]


def first(key: bytes) -> Ring:
    """A ring of one key. Raises BadKey."""
    if len(key) < _MIN_KEY_BYTES:
        raise BadKey(f"the key has {len(key)} bytes, auth/slurm wants at least {_MIN_KEY_BYTES}")
    return Ring({key_id(key): key}, key_id(key))


def step(ring: Ring, wanted: bytes, now: float, *, responding: bool) -> Ring:
    """The next ring on the way to `wanted` as the only key; the same while it has to wait. Raises BadKey.

    `responding`: no node that may run jobs is silent.
    """
    name = next(iter(first(wanted).keys))
    if name not in ring.keys:
        return Ring({**ring.keys, name: wanted}, ring.default, now)
    if not ring.rotating or not ring.loaded or now < ring.loaded + CALM_SECONDS or not responding:
        return ring
    if ring.default != name:
        return replace(ring, default=name, since=now, loaded=0.0)
    return Ring({name: wanted}, name, now)


def due(ring: Ring, now: float) -> float:
    """Seconds until the daemons should be told to read the ring; 0.0 or less: now."""
    return ring.since + DELIVERY_SECONDS - now


def jwks(ring: Ring) -> str:
    """slurm.jwks. The key that signs comes first: Slurm takes the first where none is marked."""
    ordered = sorted(ring.keys.items(), key=lambda item: item[0] != ring.default)
    entries: Sequence[Mapping[str, str]] = [
        {
            "alg": "HS256",
            "kty": "oct",
            "kid": name,
            "k": base64.urlsafe_b64encode(key).decode(),
            **({"use": "default"} if name == ring.default else {}),
        }
        for name, key in ordered
    ]
    return json.dumps({"keys": entries})


def secret(owner: Object, cluster: Cluster, ring: Ring, jwt_key: bytes) -> Object:
    """The Secret that every pod of the cluster gets its keys from. It can be made again from the given ones."""
    data = {SLURM_JWKS: jwks(ring).encode(), SLURM_KEY: ring.keys[ring.default]}
    if jwt_key:
        data[JWT_KEY] = jwt_key
    metadata = meta(
        keys_secret(cluster.name),
        cluster.namespace,
        labels(APP_CONTROLLER, cluster.name, cluster.name, "keys"),
        owner=owner,
    )
    metadata["annotations"] = {ANNOTATION_SINCE: repr(ring.since), ANNOTATION_LOADED: repr(ring.loaded)}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "Opaque",
        "metadata": metadata,
        "data": {name: base64.b64encode(value).decode() for name, value in data.items()},
    }


def read(found: Object | None) -> Ring | None:
    """The ring in a Secret made by `secret`; None when it holds none."""
    try:
        data, notes = (found or {})["data"], annotations_of(found or {})
        entries = json.loads(base64.b64decode(data[SLURM_JWKS]))["keys"]
        ring = {entry["kid"]: base64.urlsafe_b64decode(entry["k"]) for entry in entries}
        default = next(entry["kid"] for entry in entries if entry.get("use") == "default")
        return Ring(ring, default, float(notes.get(ANNOTATION_SINCE, 0)), float(notes.get(ANNOTATION_LOADED, 0)))
    except (KeyError, ValueError, TypeError, StopIteration):
        return None


def digest(found: Object) -> str:
    """Changes with any key of the Secret, and says nothing about them."""
    return canonical_hash(found["data"])
