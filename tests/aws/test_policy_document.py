"""getPolicyDocument gives what Pulumi's own provider gives."""

from __future__ import annotations

import json
from typing import Any

import pytest

from localcloud.aws.provider.model import ProviderError
from localcloud.aws.provider.policy_document import policy_document


def document(**args: Any) -> Any:
    answer = policy_document(args)
    assert json.loads(answer["json"]) == json.loads(answer["minifiedJson"])
    return json.loads(answer["json"])


def test_one_value_stands_alone_and_several_are_a_list() -> None:
    statement = {
        "sid": "Read", "actions": ["s3:GetObject"], "resources": ["arn:aws:s3:::b/*", "arn:aws:s3:::a/*"],
        "conditions": [
            {"test": "StringEquals", "variable": "aws:SourceAccount", "values": ["1"]},
            {"test": "StringEquals", "variable": "aws:PrincipalTag/team", "values": ["a", "b"]},
        ],
    }  # fmt: skip
    assert document(statements=[statement]) == {
        "Version": "2012-10-17",
        "Statement": [
            {
                "Sid": "Read",
                "Effect": "Allow",
                "Action": "s3:GetObject",
                "Resource": ["arn:aws:s3:::b/*", "arn:aws:s3:::a/*"],
                "Condition": {"StringEquals": {"aws:SourceAccount": "1", "aws:PrincipalTag/team": ["a", "b"]}},
            }
        ],
    }


def test_principals_are_grouped_and_everybody_is_a_star() -> None:
    services = {"type": "Service", "identifiers": ["pods.eks.amazonaws.com"]}
    roles = {"type": "AWS", "identifiers": ["arn:aws:iam::1:role/a", "arn:aws:iam::1:role/b"]}
    found = document(statements=[{"actions": ["sts:AssumeRole"], "principals": [services, roles]}])["Statement"][0]
    assert found["Principal"]["Service"] == "pods.eks.amazonaws.com"
    assert set(found["Principal"]["AWS"]) == {"arn:aws:iam::1:role/a", "arn:aws:iam::1:role/b"}
    everybody = {"type": "*", "identifiers": ["*"]}
    assert document(statements=[{"actions": ["a:B"], "principals": [everybody]}])["Statement"][0]["Principal"] == "*"


def test_sources_come_first_and_sids_override() -> None:
    source = json.dumps(
        {"Statement": [{"Sid": "A", "Effect": "Allow", "Action": "a:One"}, {"Sid": "B", "Effect": "Allow"}]}
    )
    override = json.dumps({"Statement": {"Sid": "B", "Effect": "Deny", "Action": "b:Two"}})
    made = document(
        sourcePolicyDocuments=[source],
        statements=[{"sid": "A", "actions": ["a:New"]}],
        overridePolicyDocuments=[override],
    )
    assert [(s["Sid"], s["Effect"], s["Action"]) for s in made["Statement"]] == [
        ("A", "Allow", "a:New"), ("B", "Deny", "b:Two"),
    ]  # fmt: skip


def test_variables_of_iam() -> None:
    statement = {"actions": ["s3:*"], "resources": ["arn:aws:s3:::home/&{aws:username}/*"]}
    assert document(statements=[statement])["Statement"][0]["Resource"] == "arn:aws:s3:::home/${aws:username}/*"


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"version": "2020-01-01"}, "version '2020-01-01'"),
        ({"statements": [{"effect": "Permit"}]}, r"statements\[0\].effect is Allow or Deny"),
        ({"statements": [{"action": ["a:B"]}]}, r"statements\[0\] has no action; allowed are actions"),
        ({"statements": [{"sid": "A"}, {"sid": "A"}]}, "duplicate sid 'A'"),
        ({"sourceJson": "{"}, r"sourcePolicyDocuments\[0\] is no JSON"),
    ],
)
def test_wrong_arguments_are_named(args: dict[str, Any], words: str) -> None:
    with pytest.raises(ProviderError, match=words):
        policy_document(args)
