"""What was created survives a kill of the server, with the same ids."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from localcloud.aws import service
from localcloud.aws.journal import Entry, Journal, JournalError
from localcloud.aws.request import AwsRequest, query_request
from localcloud.kubernetes import processes
from tests.aws.conftest import Server
from tests.clusters import own_instance


@pytest.fixture
def alone() -> Iterator[Server]:
    """A server that no other test uses, since these kill it."""
    with own_instance() as inst:
        found = Server(inst)
        found.start()
        yield found


def _everything(server: Server) -> list[Any]:
    """All that reads can see of what the test made."""
    ec2, iam, kms, logs = (server.client(name) for name in ("ec2", "iam", "kms", "logs"))
    return [
        ec2.describe_vpcs()["Vpcs"],
        ec2.describe_subnets()["Subnets"],
        ec2.describe_nat_gateways()["NatGateways"],
        ec2.describe_security_groups()["SecurityGroups"],
        ec2.describe_security_group_rules()["SecurityGroupRules"],
        ec2.describe_route_tables()["RouteTables"],
        ec2.describe_addresses()["Addresses"],
        iam.list_roles()["Roles"],
        kms.list_keys()["Keys"],
        [kms.describe_key(KeyId=key["KeyId"])["KeyMetadata"] for key in kms.list_keys()["Keys"]],
        logs.describe_log_groups()["logGroups"],
    ]


def test_all_ids_and_dates_are_the_same_after_kill_9(alone: Server) -> None:
    ec2, kms = alone.client("ec2"), alone.client("kms")
    # Reads first touch services in another order than the replay does.
    alone.client("iam").list_roles()
    vpc = ec2.create_vpc(CidrBlock="10.1.0.0/16")["Vpc"]["VpcId"]
    gateway = ec2.create_internet_gateway()["InternetGateway"]["InternetGatewayId"]
    ec2.attach_internet_gateway(InternetGatewayId=gateway, VpcId=vpc)
    subnet = ec2.create_subnet(VpcId=vpc, CidrBlock="10.1.0.0/24")["Subnet"]["SubnetId"]
    address = ec2.allocate_address(Domain="vpc")["AllocationId"]
    nat = ec2.create_nat_gateway(SubnetId=subnet, AllocationId=address)["NatGateway"]["NatGatewayId"]
    ec2.create_security_group(VpcId=vpc, GroupName="nodes", Description="nodes")
    key = kms.create_key()["KeyMetadata"]["KeyId"]
    secret = kms.encrypt(KeyId=key, Plaintext=b"jwt")["CiphertextBlob"]
    trust = (
        '{"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Principal": "*", "Action": "sts:AssumeRole"}]}'
    )
    alone.client("iam").create_role(RoleName="cluster", AssumeRolePolicyDocument=trust)
    alone.client("logs").create_log_group(logGroupName="/aws/eks/x")
    before = _everything(alone)

    alone.kill()
    alone.start()

    assert _everything(alone) == before
    assert kms.decrypt(CiphertextBlob=secret)["Plaintext"] == b"jwt"
    # and what is made from now on does not collide with what there was
    ec2.delete_nat_gateway(NatGatewayId=nat)
    ec2.create_nat_gateway(SubnetId=subnet, AllocationId=address)
    assert ec2.create_vpc(CidrBlock="10.2.0.0/16")["Vpc"]["VpcId"] != vpc
    after = _everything(alone)
    alone.kill()
    alone.start()
    assert _everything(alone) == after


def test_a_start_that_still_finds_a_dying_server_starts_another(alone: Server) -> None:
    dying = processes.running(service.daemon(alone.inst))
    assert dying is not None
    os.kill(dying, signal.SIGSTOP)  # it is there, and does not answer
    with ThreadPoolExecutor(1) as pool:
        start = pool.submit(alone.start)
        time.sleep(1.2)
        os.kill(dying, signal.SIGKILL)
        start.result()
    assert processes.running(service.daemon(alone.inst)) not in (None, dying)
    assert service.is_running(alone.inst)


def _entry(number: int) -> Entry:
    request = query_request("ec2", {"Action": "CreateVpc", "CidrBlock": f"10.{number}.0.0/16"}, "us-east-1")
    return Entry(request, seed=number, time=datetime(2026, 11, 21, 12, 0, number))


def test_an_entry_comes_back_as_it_was_written(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    binary = Entry(AwsRequest("PUT", "/bucket/key", "x=1", {"host": "h"}, b"\xff\x00"), 7, datetime(2026, 1, 2))
    for entry in (_entry(1), binary):
        journal.append(entry)
    assert list(Journal(tmp_path / "journal.jsonl").entries()) == [_entry(1), binary]


def test_a_line_that_a_kill_cut_short_is_dropped_and_the_next_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    journal.append(_entry(1))
    with path.open("ab") as file:
        file.write(_entry(2).line()[:40])
    again = Journal(path)
    assert list(again.entries()) == [_entry(1)]
    again.append(_entry(3))
    assert list(Journal(path).entries()) == [_entry(1), _entry(3)]


def test_a_damaged_line_names_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    Journal(path).append(_entry(1))
    with path.open("ab") as file:
        file.write(b"{broken\n")
    with pytest.raises(JournalError, match=r"journal\.jsonl:2: damaged line.*make down"):
        list(Journal(path).entries())


def test_signatures_are_not_kept() -> None:
    headers = {
        "host": "h", "authorization": "AWS4-HMAC-SHA256 Credential=AKIA/20261121/us-east-1/iam/aws4_request, "
        "SignedHeaders=host, Signature=abcdef", "x-amz-security-token": "token", "x-amz-date": "20261121T000000Z",
    }  # fmt: skip
    kept = AwsRequest("POST", "/", "", headers, b"Action=CreateUser").for_journal()
    assert (kept.service, kept.region, kept.access_key, kept.action) == ("iam", "us-east-1", "AKIA", "CreateUser")
    assert "abcdef" not in str(kept.headers)
    assert "x-amz-security-token" not in kept.headers
