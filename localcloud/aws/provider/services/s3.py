"""S3 buckets, as far as the platform uses them."""

from __future__ import annotations

from localcloud.aws.provider.model import CREATE_TAG, Call, ProviderError, Resource, absent, from_pairs, pairs
from localcloud.aws.provider.schema import TAGS, Values, flag, text

MISSING = ("NoSuchBucket", "404")


def _tags(call: Call, name: str) -> dict[str, str]:
    answer = absent(lambda: call.client("s3").get_bucket_tagging(Bucket=name), "NoSuchTagSet", *MISSING)
    return from_pairs(answer["TagSet"]) if answer else {}


def _exists(call: Call, name: str) -> bool:
    return absent(lambda: call.client("s3").head_bucket(Bucket=name), *MISSING) is not None


def _find(call: Call) -> str | None:
    """A bucket gets its tags after it is made: one without any is a create that was killed in between."""
    name = str(call.inputs["bucket"])
    if not _exists(call, name):
        return None
    tags = _tags(call, name)
    return name if not tags or tags.get(CREATE_TAG) == call.token else None


def _create(call: Call) -> str:
    name = str(call.inputs["bucket"])
    place = {} if call.region == "us-east-1" else {"CreateBucketConfiguration": {"LocationConstraint": call.region}}
    if _exists(call, name):  # us-east-1 answers a second CreateBucket of the owner with success
        raise ProviderError(f"BucketAlreadyOwnedByYou: bucket {name} exists already")
    call.client("s3").create_bucket(Bucket=name, **place)
    return name


def _finish(call: Call, name: str) -> None:
    token = _tags(call, name).get(CREATE_TAG, call.token)
    call.client("s3").put_bucket_tagging(Bucket=name, Tagging={"TagSet": pairs({**call.all_tags, CREATE_TAG: token})})


def _read(call: Call, name: str) -> Values | None:
    if not _exists(call, name):
        return None
    return {
        "bucket": name, "arn": f"arn:aws:s3:::{name}", "bucketDomainName": f"{name}.s3.amazonaws.com",
        "bucketRegionalDomainName": f"{name}.s3.{call.region}.amazonaws.com", "hostedZoneId": "Z3AQBSTGFYJSTF",
        "bucketRegion": call.region, "tags": _tags(call, name),
    }  # fmt: skip


def _delete(call: Call, name: str) -> None:
    s3 = call.client("s3")
    if call.inputs.get("forceDestroy") and _exists(call, name):
        for page in s3.get_paginator("list_object_versions").paginate(Bucket=name):
            for item in [*page.get("Versions", []), *page.get("DeleteMarkers", [])]:
                s3.delete_object(Bucket=name, Key=item["Key"], VersionId=item["VersionId"])
    absent(lambda: s3.delete_bucket(Bucket=name), *MISSING)


RESOURCES = {
    "aws:s3/bucket:Bucket": Resource(
        props={"bucket": text(replace=True, name=63), "bucketPrefix": text(replace=True),
               "forceDestroy": flag(), **TAGS},
        outputs=("arn", "bucketDomainName", "bucketRegion", "bucketRegionalDomainName", "hostedZoneId"),
        find=_find, create=_create, finish=_finish, read=_read, update=_finish, delete=_delete, unique=("bucket",),
    ),
}  # fmt: skip
