"""The provider's functions (invokes)."""

from __future__ import annotations

from collections.abc import Callable

from localcloud.aws.provider.model import ProviderError, Session, absent
from localcloud.aws.provider.policy_document import policy_document
from localcloud.aws.provider.schema import Values

Function = Callable[[Session, Values], Values]


def caller_identity(session: Session, args: Values) -> Values:
    answer = session.client("sts").get_caller_identity()
    account = answer["Account"]
    return {"accountId": account, "arn": answer["Arn"], "userId": answer["UserId"], "id": account}


def region(session: Session, args: Values) -> Values:
    name = args.get("region") or args.get("name") or session.region
    return {"region": name, "name": name, "id": name, "endpoint": f"ec2.{name}.amazonaws.com", "description": name}


def partition(session: Session, args: Values) -> Values:
    return {"partition": "aws", "id": "aws", "dnsSuffix": "amazonaws.com", "reverseDnsPrefix": "com.amazonaws"}


def availability_zones(session: Session, args: Values) -> Values:
    known = {"state", "allAvailabilityZones", "filters", "excludeNames", "excludeZoneIds", "region"}
    unknown = [name for name, value in args.items() if name not in known and value is not None]
    if unknown:
        raise ProviderError(f"getAvailabilityZones: the stand-in does not know {', '.join(unknown)}")
    filters = [{"Name": f["name"], "Values": f["values"]} for f in args.get("filters") or []]
    zones = session.client("ec2").describe_availability_zones(Filters=filters)["AvailabilityZones"]
    wanted = [
        zone for zone in sorted(zones, key=lambda z: str(z["ZoneName"]))
        if zone["ZoneName"] not in (args.get("excludeNames") or [])
        and zone["ZoneId"] not in (args.get("excludeZoneIds") or [])
        and zone["State"] == (args.get("state") or zone["State"])
    ]  # fmt: skip
    return {
        **args, "id": session.region, "region": session.region, "names": [zone["ZoneName"] for zone in wanted],
        "zoneIds": [zone["ZoneId"] for zone in wanted], "groupNames": sorted({session.region}),
    }  # fmt: skip


def session_context(session: Session, args: Values) -> Values:
    """The IAM role behind the ARN of an assumed role; any other ARN stands for itself."""
    arn = str(args["arn"])
    values: Values = {"id": arn, "arn": arn, "issuerArn": arn, "issuerId": "", "issuerName": "", "sessionName": ""}
    if ":assumed-role/" in arn:
        _, name, session_name = arn.split(":", 5)[5].split("/", 2)
        role = absent(lambda: session.client("iam").get_role(RoleName=name), "NoSuchEntity")
        if role is None:
            raise ProviderError(f"getSessionContext: {arn} is a session of role {name}, which does not exist")
        values |= {"issuerArn": role["Role"]["Arn"], "issuerId": role["Role"]["RoleId"], "issuerName": name}
        values["sessionName"] = session_name
    return values


FUNCTIONS: dict[str, Function] = {
    "aws:index/getCallerIdentity:getCallerIdentity": caller_identity,
    "aws:index/getRegion:getRegion": region,
    "aws:index/getPartition:getPartition": partition,
    "aws:index/getAvailabilityZones:getAvailabilityZones": availability_zones,
    "aws:iam/getSessionContext:getSessionContext": session_context,
    "aws:iam/getPolicyDocument:getPolicyDocument": lambda session, args: policy_document(args),
}


def call(session: Session, token: str, args: Values) -> Values:
    """Raises ProviderError that names a function which is not known."""
    if token not in FUNCTIONS:
        raise ProviderError(
            f"the local AWS provider has no function {token}. It has: {', '.join(sorted(FUNCTIONS))}. "
            "Add it in localcloud/aws/provider/functions.py"
        )
    return FUNCTIONS[token](session, args)
