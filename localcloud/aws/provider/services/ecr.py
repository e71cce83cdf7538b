"""ECR repositories and their lifecycle policies."""

from __future__ import annotations

import json
from typing import Any

from localcloud.aws.provider.model import CREATE_TAG, Call, Resource, absent, from_pairs, pairs
from localcloud.aws.provider.schema import TAGS, Values, block, document, flag, objects, text

MISSING = "RepositoryNotFoundException"


def _repository(call: Call, name: str) -> dict[str, Any] | None:
    answer = absent(lambda: call.client("ecr").describe_repositories(repositoryNames=[name]), MISSING)
    return dict(answer["repositories"][0]) if answer and answer["repositories"] else None


def _tags(call: Call, arn: str) -> dict[str, str]:
    return from_pairs(call.client("ecr").list_tags_for_resource(resourceArn=arn)["tags"])


def _find(call: Call) -> str | None:
    found = _repository(call, call.inputs["name"])
    if found is None or _tags(call, found["repositoryArn"]).get(CREATE_TAG) != call.token:
        return None
    return str(found["repositoryName"])


def _create(call: Call) -> str:
    inputs = call.inputs
    arguments: dict[str, Any] = {}
    if inputs.get("imageTagMutability"):
        arguments["imageTagMutability"] = inputs["imageTagMutability"]
    if inputs.get("imageScanningConfiguration"):
        arguments["imageScanningConfiguration"] = inputs["imageScanningConfiguration"]
    if inputs.get("encryptionConfigurations"):
        config = inputs["encryptionConfigurations"][0]
        arguments["encryptionConfiguration"] = {k: v for k, v in config.items() if v is not None}
        arguments["encryptionConfiguration"].setdefault("encryptionType", "AES256")
    call.client("ecr").create_repository(repositoryName=inputs["name"], tags=pairs(call.tags), **arguments)
    return str(inputs["name"])


def _read(call: Call, name: str) -> Values | None:
    found = _repository(call, name)
    if found is None:
        return None
    encryption = found.get("encryptionConfiguration") or {}
    scanning = found.get("imageScanningConfiguration") or {}
    return {
        "name": name, "arn": found["repositoryArn"], "registryId": found["registryId"],
        "repositoryUrl": found["repositoryUri"], "imageTagMutability": found["imageTagMutability"],
        "imageScanningConfiguration": {"scanOnPush": bool(scanning.get("scanOnPush"))},
        "encryptionConfigurations": [{k: v for k, v in encryption.items() if v}],
        "tags": _tags(call, found["repositoryArn"]),
    }  # fmt: skip


def _update(call: Call, name: str) -> None:
    ecr, inputs, found = call.client("ecr"), call.inputs, _repository(call, name)
    if call.changed("imageTagMutability"):
        ecr.put_image_tag_mutability(
            repositoryName=name, imageTagMutability=inputs.get("imageTagMutability") or "MUTABLE"
        )
    if call.changed("imageScanningConfiguration"):
        scanning = inputs.get("imageScanningConfiguration") or {"scanOnPush": False}
        ecr.put_image_scanning_configuration(repositoryName=name, imageScanningConfiguration=scanning)
    wanted, old = call.all_tags, call.old_tags
    gone = [key for key in old if key not in wanted]
    added = {key: value for key, value in wanted.items() if old.get(key) != value}
    if found and gone:
        ecr.untag_resource(resourceArn=found["repositoryArn"], tagKeys=gone)
    if found and added:
        ecr.tag_resource(resourceArn=found["repositoryArn"], tags=pairs(added))


def _delete(call: Call, name: str) -> None:
    force = bool(call.inputs.get("forceDelete"))
    absent(lambda: call.client("ecr").delete_repository(repositoryName=name, force=force), MISSING)


def _policy_create(call: Call) -> str:
    policy, repository = call.inputs["policy"], call.inputs["repository"]
    text_ = policy if isinstance(policy, str) else json.dumps(policy)
    call.client("ecr").put_lifecycle_policy(repositoryName=repository, lifecyclePolicyText=text_)
    return str(repository)


def _policy_read(call: Call, repository: str) -> Values | None:
    ecr = call.client("ecr")
    found = absent(
        lambda: ecr.get_lifecycle_policy(repositoryName=repository), MISSING, "LifecyclePolicyNotFoundException"
    )
    if found is None:
        return None
    return {"repository": repository, "policy": found["lifecyclePolicyText"], "registryId": found["registryId"]}


def _policy_update(call: Call, repository: str) -> None:
    _policy_create(call)


def _policy_delete(call: Call, repository: str) -> None:
    ecr = call.client("ecr")
    absent(lambda: ecr.delete_lifecycle_policy(repositoryName=repository), MISSING, "LifecyclePolicyNotFoundException")


RESOURCES = {
    "aws:ecr/repository:Repository": Resource(
        props={
            "name": text(replace=True, name=256), "forceDelete": flag(),
            "imageTagMutability": text("MUTABLE", "IMMUTABLE", computed=True),
            "imageScanningConfiguration": block({"scanOnPush": flag()}, computed=True),
            "encryptionConfigurations": objects(
                {"encryptionType": text("AES256", "KMS", "KMS_DSSE"), "kmsKey": text()}, replace=True, computed=True
            ), **TAGS,
        },
        outputs=("arn", "registryId", "repositoryUrl"), find=_find, create=_create, read=_read, update=_update,
        delete=_delete, unique=("name",),
    ),
    "aws:ecr/lifecyclePolicy:LifecyclePolicy": Resource(
        props={"repository": text(replace=True, required=True), "policy": document(required=True)},
        outputs=("registryId",), create=_policy_create, read=_policy_read, update=_policy_update, delete=_policy_delete,
        unique=("repository",),
    ),
}  # fmt: skip
