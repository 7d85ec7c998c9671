"""Roles that are assumed by people, and simulations of policies, as IAM and STS answer them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from botocore.exceptions import ClientError

from infra import policies
from trainer.aws.access import Access, error_code

LOOK = policies.document(policies.allow("Look", "s3:GetObject", "arn:aws:s3:::b/${aws:userid}/*"))


def make_role(access: Access, principal: dict[str, str], name: str = "somebody") -> str:
    trust = policies.document({"Effect": "Allow", "Principal": principal, "Action": "sts:AssumeRole"})
    iam = access.client("iam")
    role = iam.create_role(RoleName=name, AssumeRolePolicyDocument=json.dumps(trust))["Role"]
    iam.put_role_policy(RoleName=name, PolicyName="own", PolicyDocument=json.dumps(LOOK))
    return str(role["Arn"])


def simulated(access: Access, arn: str, resource: str, **context: str) -> str:
    entries = [
        {"ContextKeyName": name, "ContextKeyValues": [value], "ContextKeyType": "string"}
        for name, value in context.items()
    ]
    asked = {"ActionNames": ["s3:GetObject"], "ResourceArns": [resource], "ContextEntries": entries}
    answer = access.client("iam").simulate_principal_policy(PolicySourceArn=arn, **asked)
    return str(answer["EvaluationResults"][0]["EvalDecision"])


def test_a_role_is_lent_to_whom_it_trusts(access: Access) -> None:
    account = access.client("sts").get_caller_identity()["Account"]
    arn = make_role(access, {"AWS": f"arn:aws:iam::{account}:root"})
    lent = access.client("sts").assume_role(RoleArn=arn, RoleSessionName="ada")["Credentials"]
    somebody = replace(access, access_key=lent["AccessKeyId"], secret_key=lent["SecretAccessKey"])
    told = somebody.client("sts").get_caller_identity()
    assert told["Arn"] == f"arn:aws:sts::{account}:assumed-role/somebody/ada"
    with pytest.raises(ClientError, match="not authorized to perform: iam:ListUsers"):
        somebody.client("iam").list_users()


def test_a_role_of_a_service_is_lent_to_nobody(access: Access) -> None:
    arn = make_role(access, {"Service": "ec2.amazonaws.com"})
    with pytest.raises(ClientError) as refused:
        access.client("sts").assume_role(RoleArn=arn, RoleSessionName="ada")
    assert error_code(refused.value) == "AccessDenied"


def test_a_simulation_knows_the_context_that_it_is_given(access: Access) -> None:
    arn = make_role(access, {"Service": "ec2.amazonaws.com"})
    own, other = ("arn:aws:s3:::b/A:i-1/x", "arn:aws:s3:::b/A:i-2/x")
    me: dict[str, Any] = {"aws:userid": "A:i-1"}
    assert simulated(access, arn, own, **me) == "allowed"
    assert simulated(access, arn, own) == "implicitDeny"
    assert simulated(access, arn, other, **me) == "implicitDeny"
    iam = access.client("iam")
    denied = policies.document({**LOOK["Statement"][0], "Effect": "Deny"})
    iam.put_role_policy(RoleName="somebody", PolicyName="no", PolicyDocument=json.dumps(denied))
    assert simulated(access, arn, own, **me) == "explicitDeny"
    iam.delete_role_policy(RoleName="somebody", PolicyName="no")
    none = json.dumps(policies.document(policies.allow("Nothing", "s3:PutObject", "*")))
    bounds = iam.create_policy(PolicyName="bounds", PolicyDocument=none)["Policy"]["Arn"]
    iam.put_role_permissions_boundary(RoleName="somebody", PermissionsBoundary=bounds)
    assert simulated(access, arn, own, **me) == "implicitDeny"
