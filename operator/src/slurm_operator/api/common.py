"""Types shared by the six kinds, and the helpers that give fields their schema.

A type here is the only description of a resource: `api.crd` renders the CRD from it and `api.load` reads a resource
into it. A default written here is the default, everywhere.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

JsonObject = dict[str, Any]


class Base(msgspec.Struct, frozen=True, rename="camel"):
    """Reads as Python, speaks camelCase, ignores fields of later versions."""


def doc(text: str, **schema: Any) -> msgspec.Meta:
    """Description and further OpenAPI keys of a field; `x_kubernetes_…` becomes `x-kubernetes-…`.

    A field of type JsonObject keeps whatever it is given (preserve-unknown-fields).
    """
    extra = {key.replace("_", "-") if key.startswith("x_") else key: value for key, value in schema.items()}
    return msgspec.Meta(description=text, extra_json_schema=extra)


def rule(expression: str, message: str) -> dict[str, str]:
    """A CEL rule of `x-kubernetes-validations`."""
    return {"rule": expression, "message": message}


Container = Annotated[
    JsonObject,
    doc("Merged over the container that the operator builds, as a strategic merge patch: any field of a Container."),
]
PodSpec = Annotated[
    JsonObject,
    doc("Merged over the pod that the operator builds, as a strategic merge patch: any field of a PodSpec."),
]


class Metadata(Base, frozen=True):
    labels: Annotated[dict[str, str], doc("Labels to add.")] = {}
    annotations: Annotated[dict[str, str], doc("Annotations to add.")] = {}


class PodTemplate(Base, frozen=True):
    metadata: Annotated[Metadata, doc("Labels and annotations of the pods.")] = Metadata()
    spec: PodSpec = {}


class LocalRef(Base, frozen=True):
    name: Annotated[str, doc("Name of an object in the same namespace.", maxLength=253)] = ""


class KeySelector(Base, frozen=True):
    """One key of a Secret or ConfigMap in the same namespace."""

    key: Annotated[str, doc("Key inside it.", maxLength=253)]
    name: Annotated[str, doc("Name of the object.", maxLength=253)] = ""
    optional: Annotated[bool | None, doc("Accepted for compatibility; the key must exist.")] = None


class Service(Base, frozen=True):
    metadata: Annotated[Metadata, doc("Labels and annotations of the Service.")] = Metadata()
    spec: Annotated[
        JsonObject,
        doc("Merged over the Service that the operator builds; externalIPs are dropped (CVE-2020-8554)."),
    ] = {}
    port: Annotated[int, doc("Port of the Service; 0: the daemon's own port.", minimum=0, maximum=65535)] = 0
    node_port: Annotated[
        int, doc("Port on every node (types NodePort and LoadBalancer); 0: any.", minimum=0, maximum=65535)
    ] = 0


class External(Base, frozen=True):
    host: Annotated[str, doc("Host name or address of the daemon outside the cluster.", maxLength=253)] = ""
    port: Annotated[int, doc("Its port; 0: the daemon's usual one.", minimum=0, maximum=65535)] = 0


class Condition(Base, frozen=True):
    """metav1.Condition."""

    type: Annotated[str, doc("Ready, Progressing, Degraded or a more special one.", maxLength=316)]
    status: Annotated[str, doc("True, False or Unknown.", enum=["True", "False", "Unknown"])]
    reason: Annotated[str, doc("One word for machines.", minLength=1, maxLength=1024)]
    message: Annotated[str, doc("What a person needs to know.", maxLength=32768)]
    last_transition_time: Annotated[str, doc("When status last changed.", format="date-time")]
    observed_generation: Annotated[int, doc("The generation this was computed from.", format="int64", minimum=0)] = 0


Conditions = Annotated[
    list[Condition],
    doc(
        "What the operator observed last; `kubectl wait --for=condition=Ready` works.",
        x_kubernetes_list_type="map",
        x_kubernetes_list_map_keys=["type"],
    ),
]
