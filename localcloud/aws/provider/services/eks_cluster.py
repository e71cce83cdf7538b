"""EKS clusters."""

from __future__ import annotations

from typing import Any

from localcloud.aws.provider.model import CREATE_TAG, Call, Resource, absent
from localcloud.aws.provider.schema import TAGS, Values, block, flag, strings, text
from localcloud.aws.provider.services.eks_common import (
    MISSING,
    Found,
    clean,
    date,
    retag,
    wait_active,
    wait_gone,
    wait_update,
)

SECONDS = 1800
LOG_TYPES = ("api", "audit", "authenticator", "controllerManager", "scheduler")
VPC_INPUTS = ("subnetIds", "securityGroupIds", "endpointPublicAccess", "endpointPrivateAccess", "publicAccessCidrs")


def _cluster(call: Call, name: str) -> Found | None:
    answer = absent(lambda: call.client("eks").describe_cluster(name=name), MISSING)
    return dict(answer["cluster"]) if answer else None


def _find(call: Call) -> str | None:
    found = _cluster(call, call.inputs["name"])
    if found is None or found["tags"].get(CREATE_TAG) != call.token:
        return None
    if found["status"] == "FAILED":
        _delete(call, found["name"])
        return None
    return str(found["name"])


def _logging(types: list[str]) -> dict[str, Any]:
    off = [kind for kind in LOG_TYPES if kind not in types]
    setups = ([{"types": sorted(types), "enabled": True}] if types else []) + (
        [{"types": off, "enabled": False}] if off else []
    )
    return {"clusterLogging": setups}


def _create(call: Call) -> str:
    inputs = call.inputs
    arguments: dict[str, Any] = {}
    for name in ("version", "bootstrapSelfManagedAddons", "deletionProtection"):
        if inputs.get(name) is not None:
            arguments[name] = inputs[name]
    for name in ("accessConfig", "kubernetesNetworkConfig", "upgradePolicy", "zonalShiftConfig"):
        if inputs.get(name):
            arguments[name] = clean(inputs[name])
    if inputs.get("enabledClusterLogTypes"):
        arguments["logging"] = _logging(inputs["enabledClusterLogTypes"])
    if inputs.get("encryptionConfig"):
        arguments["encryptionConfig"] = [clean(inputs["encryptionConfig"])]
    vpc = {k: v for k, v in clean(inputs["vpcConfig"]).items() if k in VPC_INPUTS}
    call.client("eks").create_cluster(
        name=inputs["name"], roleArn=inputs["roleArn"], resourcesVpcConfig=vpc, tags=call.tags,
        clientRequestToken=call.token, **arguments,
    )  # fmt: skip
    return str(inputs["name"])


def _wait(call: Call, name: str) -> None:
    wait_active(
        call, f"cluster {name}", lambda: _cluster(call, name), name, SECONDS, ("CREATING", "UPDATING", "PENDING")
    )


def _read(call: Call, name: str) -> Values | None:
    found = _cluster(call, name)
    if found is None:
        return None
    vpc = found["resourcesVpcConfig"]
    logs = [kind for s in found["logging"]["clusterLogging"] if s["enabled"] for kind in s["types"]]
    values: Values = {
        "name": name, "arn": found["arn"], "roleArn": found["roleArn"], "version": found["version"],
        "vpcConfig": {k: vpc[k] for k in (*VPC_INPUTS, "clusterSecurityGroupId", "vpcId")},
        "accessConfig": found["accessConfig"], "upgradePolicy": found["upgradePolicy"],
        "kubernetesNetworkConfig": found["kubernetesNetworkConfig"], "zonalShiftConfig": found["zonalShiftConfig"],
        "deletionProtection": found["deletionProtection"], "enabledClusterLogTypes": logs,
        "endpoint": found.get("endpoint", ""),
        "certificateAuthority": found.get("certificateAuthority") or {"data": ""},
        "identities": [{"oidcs": [{"issuer": found["identity"]["oidc"]["issuer"]}]}], "status": found["status"],
        "platformVersion": found.get("platformVersion", ""), "createdAt": date(found["createdAt"]),
        "tags": found["tags"],
    }  # fmt: skip
    if found.get("encryptionConfig"):
        values["encryptionConfig"] = found["encryptionConfig"][0]
    return values


def _update(call: Call, name: str) -> None:
    eks, inputs = call.client("eks"), call.inputs
    found = _cluster(call, name)
    if found is not None and found["status"] == "FAILED":
        _delete(call, name)
        _create(call)
        _wait(call, name)
        return
    _wait(call, name)
    steps: list[dict[str, Any]] = []
    old_vpc, new_vpc = clean(call.old.get("vpcConfig")), clean(inputs["vpcConfig"])
    access = {k: v for k, v in new_vpc.items() if k in VPC_INPUTS[2:] and v != old_vpc.get(k)}
    if access:
        steps.append({"resourcesVpcConfig": access})
    placement = {k: v for k, v in new_vpc.items() if k in VPC_INPUTS[:2] and set(v) != set(old_vpc.get(k) or [])}
    if placement:
        steps.append({"resourcesVpcConfig": {"subnetIds": new_vpc["subnetIds"], **placement}})
    if call.changed("enabledClusterLogTypes"):
        steps.append({"logging": _logging(inputs.get("enabledClusterLogTypes") or [])})
    mode = (inputs.get("accessConfig") or {}).get("authenticationMode")
    if mode and mode != (call.old.get("accessConfig") or {}).get("authenticationMode"):
        steps.append({"accessConfig": {"authenticationMode": mode}})
    options = ("upgradePolicy", "zonalShiftConfig")
    steps += [{option: clean(inputs[option])} for option in options if call.changed(option) and inputs.get(option)]
    if call.changed("deletionProtection"):
        steps.append({"deletionProtection": bool(inputs.get("deletionProtection"))})
    for step in steps:
        if _is_done(call, name, step):
            continue  # by an update that was killed before it could say so
        answer = eks.update_cluster_config(name=name, **step)
        wait_update(call, f"cluster {name}", answer["update"], SECONDS, name=name)
    if (
        call.changed("version")
        and inputs.get("version")
        and (_cluster(call, name) or {}).get("version") != inputs["version"]
    ):
        answer = eks.update_cluster_version(name=name, version=inputs["version"])
        wait_update(call, f"cluster {name}", answer["update"], SECONDS, name=name)
    if found is not None:
        retag(call, found["arn"])


def _is_done(call: Call, name: str, step: dict[str, Any]) -> bool:
    """Whether the cluster is as a step would make it."""
    found = _cluster(call, name) or {}
    option, wanted = next(iter(step.items()))
    present = found.get(option)
    if isinstance(wanted, dict) and isinstance(present, dict):
        return all(present.get(k) == v for k, v in wanted.items())
    return bool(present == wanted)


def _delete(call: Call, name: str) -> None:
    found = _cluster(call, name)
    if found is None:
        return
    if found["status"] in ("CREATING", "UPDATING"):
        call.wait(f"cluster {name} to settle", lambda: _settled(call, name), SECONDS)
    if found["status"] != "DELETING":
        absent(lambda: call.client("eks").delete_cluster(name=name), MISSING)
    wait_gone(call, f"cluster {name}", lambda: _cluster(call, name), SECONDS)


def _settled(call: Call, name: str) -> bool | None:
    found = _cluster(call, name)
    return None if found and found["status"] in ("CREATING", "UPDATING") else True


RESOURCES = {
    "aws:eks/cluster:Cluster": Resource(
        props={
            "name": text(replace=True, name=100), "roleArn": text(replace=True, required=True),
            "version": text(computed=True),
            "vpcConfig": block({
                "subnetIds": strings(required=True), "securityGroupIds": strings(computed=True),
                "endpointPublicAccess": flag(computed=True), "endpointPrivateAccess": flag(computed=True),
                "publicAccessCidrs": strings(computed=True), "clusterSecurityGroupId": text(computed=True),
                "vpcId": text(computed=True),
            }, required=True),
            "accessConfig": block({
                "authenticationMode": text("CONFIG_MAP", "API_AND_CONFIG_MAP", "API", computed=True),
                "bootstrapClusterCreatorAdminPermissions": flag(replace=True),
            }, computed=True),
            "kubernetesNetworkConfig": block({
                "serviceIpv4Cidr": text(replace=True, computed=True),
                "ipFamily": text("ipv4", replace=True, computed=True),
                "elasticLoadBalancing": block({"enabled": flag()}, computed=True),
            }, computed=True),
            "encryptionConfig": block({
                "provider": block({"keyArn": text(replace=True, required=True)}, required=True),
                "resources": strings(replace=True, required=True),
            }),
            "enabledClusterLogTypes": strings(), "bootstrapSelfManagedAddons": flag(replace=True),
            "upgradePolicy": block({"supportType": text("STANDARD", "EXTENDED")}, computed=True),
            "zonalShiftConfig": block({"enabled": flag()}, computed=True), "deletionProtection": flag(computed=True),
            **TAGS,
        },
        outputs=("arn", "certificateAuthority", "createdAt", "endpoint", "identities", "platformVersion", "status"),
        find=_find, create=_create, finish=_wait, read=_read, update=_update, delete=_delete, unique=("name",),
    ),
}  # fmt: skip
