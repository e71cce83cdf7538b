"""EKS managed node groups and add-ons."""

from __future__ import annotations

from typing import Any

from localcloud.aws.provider.model import CREATE_TAG, Call, ProviderError, Resource, absent
from localcloud.aws.provider.schema import TAGS, Prop, Values, block, flag, mapping, number, objects, strings, text
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

GROUP_SECONDS = 3600
ADDON_SECONDS = 1200
REPAIR: dict[str, Prop] = {
    "enabled": flag(), "maxUnhealthyNodeThresholdCount": number(), "maxUnhealthyNodeThresholdPercentage": number(),
    "maxParallelNodesRepairedCount": number(), "maxParallelNodesRepairedPercentage": number(),
    "nodeRepairConfigOverrides": objects({
        "minRepairWaitTimeMins": number(), "nodeMonitoringCondition": text(), "nodeUnhealthyReason": text(),
        "repairAction": text("Replace", "Reboot", "NoAction"),
    }),
}  # fmt: skip


def _parts(identifier: str, kind: str) -> tuple[str, str]:
    cluster, colon, name = identifier.partition(":")
    if not colon:
        raise ProviderError(f"id {identifier!r} of an {kind}: <cluster>:<name> is expected")
    return cluster, name


def _group(call: Call, identifier: str) -> Found | None:
    cluster, name = _parts(identifier, "aws:eks/nodeGroup:NodeGroup")
    answer = absent(lambda: call.client("eks").describe_nodegroup(clusterName=cluster, nodegroupName=name), MISSING)
    return dict(answer["nodegroup"]) if answer else None


def _group_id(call: Call) -> str:
    return f"{call.inputs['clusterName']}:{call.inputs['nodeGroupName']}"


def _group_find(call: Call) -> str | None:
    found = _group(call, _group_id(call))
    if found is None or found["tags"].get(CREATE_TAG) != call.token:
        return None
    if found["status"] in ("CREATE_FAILED", "DELETING"):
        _group_delete(call, _group_id(call))
        return None
    return _group_id(call)


def _group_create(call: Call) -> str:
    inputs = call.inputs
    names = {
        "amiType": "amiType", "capacityType": "capacityType", "diskSize": "diskSize", "instanceTypes": "instanceTypes",
        "labels": "labels", "releaseVersion": "releaseVersion", "version": "version",
    }  # fmt: skip
    arguments: dict[str, Any] = {aws: inputs[name] for name, aws in names.items() if inputs.get(name) is not None}
    for name in ("launchTemplate", "updateConfig", "nodeRepairConfig"):
        if inputs.get(name):
            arguments[name] = clean(inputs[name])
    if inputs.get("taints"):
        arguments["taints"] = [clean(taint) for taint in inputs["taints"]]
    call.client("eks").create_nodegroup(
        clusterName=inputs["clusterName"], nodegroupName=inputs["nodeGroupName"], nodeRole=inputs["nodeRoleArn"],
        subnets=inputs["subnetIds"], scalingConfig=clean(inputs["scalingConfig"]), tags=call.tags,
        clientRequestToken=call.token, **arguments,
    )  # fmt: skip
    return _group_id(call)


def _group_wait(call: Call, identifier: str) -> None:
    what = f"node group {identifier.split(':')[1]}"
    wait_active(call, what, lambda: _group(call, identifier), identifier, GROUP_SECONDS, ("CREATING", "UPDATING"))


def _group_read(call: Call, identifier: str) -> Values | None:
    found = _group(call, identifier)
    if found is None:
        return None
    values: Values = {
        "clusterName": found["clusterName"], "nodeGroupName": found["nodegroupName"], "arn": found["nodegroupArn"],
        "nodeRoleArn": found["nodeRole"], "subnetIds": found["subnets"], "scalingConfig": found["scalingConfig"],
        "amiType": found["amiType"], "capacityType": found["capacityType"], "labels": found["labels"],
        "taints": found["taints"], "updateConfig": found["updateConfig"], "nodeRepairConfig": found["nodeRepairConfig"],
        "version": found["version"], "releaseVersion": found["releaseVersion"], "status": found["status"],
        "resources": [{
            "autoscalingGroups": found["resources"]["autoScalingGroups"], "remoteAccessSecurityGroupId": "",
        }],
        "tags": found["tags"],
    }  # fmt: skip
    for name in ("diskSize", "instanceTypes", "launchTemplate"):
        if found.get(name) is not None:
            values[name] = found[name]
    return values


def _group_update(call: Call, identifier: str) -> None:
    eks, inputs, old = call.client("eks"), call.inputs, call.old
    cluster, name = _parts(identifier, "node group")
    found = _group(call, identifier)
    if found is not None and found["status"] == "CREATE_FAILED":
        _group_delete(call, identifier)
        _group_create(call)
        _group_wait(call, identifier)
        return
    if found is not None and found["status"] in ("CREATING", "UPDATING"):
        call.wait(f"node group {name} to settle", lambda: _group_settled(call, identifier), GROUP_SECONDS)
    change: dict[str, Any] = {}
    if call.changed("scalingConfig"):
        change["scalingConfig"] = clean(inputs["scalingConfig"])
    if call.changed("labels"):
        before, after = old.get("labels") or {}, inputs.get("labels") or {}
        change["labels"] = {"addOrUpdateLabels": {k: v for k, v in after.items() if before.get(k) != v},
                            "removeLabels": [k for k in before if k not in after]}  # fmt: skip
    if call.changed("taints"):
        before_taints, after_taints = ([clean(t) for t in v.get("taints") or []] for v in (old, inputs))
        kept = {(t["key"], t["effect"]) for t in after_taints}
        change["taints"] = {"addOrUpdateTaints": [t for t in after_taints if t not in before_taints],
                            "removeTaints": [t for t in before_taints if (t["key"], t["effect"]) not in kept],
                            }  # fmt: skip
    for option in ("updateConfig", "nodeRepairConfig"):
        if call.changed(option) and inputs.get(option):
            change[option] = clean(inputs[option])
    if change:
        answer = eks.update_nodegroup_config(clusterName=cluster, nodegroupName=name, **change)
        wait_update(call, f"node group {name}", answer["update"], GROUP_SECONDS, name=cluster, nodegroupName=name)
    if call.changed("version", "releaseVersion", "launchTemplate"):
        arguments = {k: inputs[k] for k in ("version", "releaseVersion") if inputs.get(k) and call.changed(k)}
        if inputs.get("launchTemplate") and call.changed("launchTemplate"):
            arguments["launchTemplate"] = clean(inputs["launchTemplate"])
        answer = eks.update_nodegroup_version(
            clusterName=cluster, nodegroupName=name, force=bool(inputs.get("forceUpdateVersion")), **arguments
        )
        wait_update(call, f"node group {name}", answer["update"], GROUP_SECONDS, name=cluster, nodegroupName=name)
    if found is not None:
        retag(call, found["nodegroupArn"])


def _group_settled(call: Call, identifier: str) -> bool | None:
    found = _group(call, identifier)
    return None if found and found["status"] in ("CREATING", "UPDATING") else True


def _group_delete(call: Call, identifier: str) -> None:
    cluster, name = _parts(identifier, "node group")
    found = _group(call, identifier)
    if found is None:
        return
    if found["status"] in ("CREATING", "UPDATING"):
        call.wait(f"node group {name} to settle", lambda: _group_settled(call, identifier), GROUP_SECONDS)
    if found["status"] != "DELETING":
        absent(lambda: call.client("eks").delete_nodegroup(clusterName=cluster, nodegroupName=name), MISSING)
    wait_gone(call, f"node group {name}", lambda: _group(call, identifier), GROUP_SECONDS)


def _addon(call: Call, identifier: str) -> Found | None:
    cluster, name = _parts(identifier, "aws:eks/addon:Addon")
    answer = absent(lambda: call.client("eks").describe_addon(clusterName=cluster, addonName=name), MISSING)
    return dict(answer["addon"]) if answer else None


def _addon_id(call: Call) -> str:
    return f"{call.inputs['clusterName']}:{call.inputs['addonName']}"


def _addon_find(call: Call) -> str | None:
    found = _addon(call, _addon_id(call))
    if found is None or found["tags"].get(CREATE_TAG) != call.token:
        return None
    if found["status"] in ("CREATE_FAILED", "DELETING"):
        _addon_delete(call, _addon_id(call))
        return None
    return _addon_id(call)


def _addon_arguments(inputs: Values) -> dict[str, Any]:
    names = ("addonVersion", "configurationValues", "serviceAccountRoleArn")
    arguments: dict[str, Any] = {name: inputs[name] for name in names if inputs.get(name) is not None}
    if inputs.get("podIdentityAssociations") is not None:
        arguments["podIdentityAssociations"] = [clean(item) for item in inputs["podIdentityAssociations"]]
    return arguments


def _addon_create(call: Call) -> str:
    inputs = call.inputs
    conflicts = (
        {"resolveConflicts": inputs["resolveConflictsOnCreate"]} if inputs.get("resolveConflictsOnCreate") else {}
    )
    call.client("eks").create_addon(
        clusterName=inputs["clusterName"], addonName=inputs["addonName"], tags=call.tags, clientRequestToken=call.token,
        **conflicts, **_addon_arguments(inputs),
    )  # fmt: skip
    return _addon_id(call)


def _addon_wait(call: Call, identifier: str) -> None:
    what = f"add-on {identifier.split(':')[1]}"
    wait_active(call, what, lambda: _addon(call, identifier), identifier, ADDON_SECONDS, ("CREATING", "UPDATING"))


def _addon_read(call: Call, identifier: str) -> Values | None:
    found = _addon(call, identifier)
    if found is None:
        return None
    values: Values = {
        "clusterName": found["clusterName"], "addonName": found["addonName"], "addonVersion": found["addonVersion"],
        "arn": found["addonArn"], "createdAt": date(found["createdAt"]), "modifiedAt": date(found["modifiedAt"]),
        "configurationValues": found.get("configurationValues"), "tags": found["tags"],
        "serviceAccountRoleArn": found.get("serviceAccountRoleArn"),
    }  # fmt: skip
    associations = []
    for arn in found.get("podIdentityAssociations") or []:
        answer = call.client("eks").describe_pod_identity_association(
            clusterName=found["clusterName"], associationId=arn.rsplit("/", 1)[1]
        )["association"]
        associations.append({"roleArn": answer["roleArn"], "serviceAccount": answer["serviceAccount"]})
    values["podIdentityAssociations"] = associations
    return values


def _addon_update(call: Call, identifier: str) -> None:
    cluster, name = _parts(identifier, "add-on")
    found = _addon(call, identifier)
    if found is not None and found["status"] == "CREATE_FAILED":
        _addon_delete(call, identifier)
        _addon_create(call)
        _addon_wait(call, identifier)
        return
    unfinished = found is not None and found["status"] not in ("ACTIVE", "CREATING", "UPDATING")
    if unfinished or call.changed(
        "addonVersion", "configurationValues", "serviceAccountRoleArn", "podIdentityAssociations"
    ):
        call.wait(f"add-on {name} to settle", lambda: _addon_settled(call, identifier), ADDON_SECONDS)
        conflicts = call.inputs.get("resolveConflictsOnUpdate")
        answer = call.client("eks").update_addon(
            clusterName=cluster, addonName=name, **({"resolveConflicts": conflicts} if conflicts else {}),
            **_addon_arguments(call.inputs),
        )  # fmt: skip
        wait_update(call, f"add-on {name}", answer["update"], ADDON_SECONDS, name=cluster, addonName=name)
    if found is not None:
        retag(call, found["addonArn"])


def _addon_settled(call: Call, identifier: str) -> bool | None:
    found = _addon(call, identifier)
    return None if found and found["status"] in ("CREATING", "UPDATING") else True


def _addon_delete(call: Call, identifier: str) -> None:
    cluster, name = _parts(identifier, "add-on")
    found = _addon(call, identifier)
    if found is None:
        return
    call.wait(f"add-on {name} to settle", lambda: _addon_settled(call, identifier), ADDON_SECONDS)
    preserve = bool(call.inputs.get("preserve"))
    absent(lambda: call.client("eks").delete_addon(clusterName=cluster, addonName=name, preserve=preserve), MISSING)
    wait_gone(call, f"add-on {name}", lambda: _addon(call, identifier), ADDON_SECONDS)


CONFLICTS = ("NONE", "OVERWRITE", "PRESERVE")
RESOURCES = {
    "aws:eks/nodeGroup:NodeGroup": Resource(
        props={
            "clusterName": text(replace=True, required=True), "nodeGroupName": text(replace=True, name=63),
            "nodeGroupNamePrefix": text(replace=True), "nodeRoleArn": text(replace=True, required=True),
            "subnetIds": strings(replace=True, required=True),
            "scalingConfig": block({"desiredSize": number(required=True), "maxSize": number(required=True),
                                    "minSize": number(required=True)}, required=True),
            "amiType": text(replace=True, computed=True),
            "capacityType": text("ON_DEMAND", "SPOT", "CAPACITY_BLOCK", replace=True, computed=True),
            "diskSize": number(replace=True, computed=True), "instanceTypes": Prop("list", replace=True, computed=True),
            "labels": mapping(), "version": text(computed=True), "releaseVersion": text(computed=True),
            "forceUpdateVersion": flag(),
            "launchTemplate": block({"id": text(replace=True, computed=True), "name": text(replace=True, computed=True),
                                     "version": text(required=True)}),
            "taints": objects({"key": text(required=True), "value": text(),
                               "effect": text("NO_SCHEDULE", "NO_EXECUTE", "PREFER_NO_SCHEDULE", required=True)}),
            "updateConfig": block({"maxUnavailable": number(), "maxUnavailablePercentage": number(),
                                   "updateStrategy": text()}, computed=True),
            "nodeRepairConfig": block(REPAIR, computed=True), **TAGS,
        },
        outputs=("arn", "resources", "status"), find=_group_find, create=_group_create, finish=_group_wait,
        read=_group_read, update=_group_update, delete=_group_delete, unique=("clusterName", "nodeGroupName"),
    ),
    "aws:eks/addon:Addon": Resource(
        props={
            "clusterName": text(replace=True, required=True), "addonName": text(replace=True, required=True),
            "addonVersion": text(computed=True), "configurationValues": text(computed=True),
            "serviceAccountRoleArn": text(), "preserve": flag(), "resolveConflictsOnCreate": text(*CONFLICTS),
            "resolveConflictsOnUpdate": text(*CONFLICTS),
            "podIdentityAssociations": objects({"roleArn": text(required=True), "serviceAccount": text(required=True)}),
            **TAGS,
        },
        outputs=("arn", "createdAt", "modifiedAt"), find=_addon_find, create=_addon_create, finish=_addon_wait,
        read=_addon_read, update=_addon_update, delete=_addon_delete, unique=("clusterName", "addonName"),
    ),
}  # fmt: skip
