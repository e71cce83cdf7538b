"""KMS and the services that encrypt with its keys: keys exist, are enabled, and their policies admit the service."""

from __future__ import annotations

from localcloud.aws.errors import AwsError
from localcloud.aws.guards import Table, World
from localcloud.aws.request import AwsRequest


def _log_key(world: World, key_id: str) -> None:
    key, service = world.lookup.key(key_id), f"logs.{world.lookup.region}.amazonaws.com"
    if key is None or key.state != "Enabled" or not key.admits(service):
        raise AwsError(
            "InvalidParameterException",
            f"The specified KMS key does not exist or is not allowed to be used with Arn '{key_id}': "
            f"the key policy must allow the principal {service}.",
        )


def create_log_group(world: World, request: AwsRequest) -> None:
    if request.params.get("kmsKeyId"):
        _log_key(world, request.params["kmsKeyId"])


def create_repository(world: World, request: AwsRequest) -> None:
    key_id = request.params.get("encryptionConfiguration", {}).get("kmsKey")
    if key_id and world.lookup.key(key_id) is None:
        raise AwsError("KmsException", f"Key '{key_id}' does not exist")


def schedule_key_deletion(world: World, request: AwsRequest) -> None:
    key = world.lookup.key(request.params.get("KeyId", ""))
    if key is not None and key.state == "PendingDeletion":
        raise AwsError("KMSInvalidStateException", f"{key.arn} is pending deletion.")


GUARDS: Table = {
    ("logs", "CreateLogGroup"): create_log_group,
    ("logs", "AssociateKmsKey"): create_log_group,
    ("ecr", "CreateRepository"): create_repository,
    ("kms", "ScheduleKeyDeletion"): schedule_key_deletion,
}
