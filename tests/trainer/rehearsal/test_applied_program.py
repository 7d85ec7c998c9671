"""The calls that applied the program once, stored and replayed. `test_pulumi_apply` replays those of a real
application.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trainer.base.errors import ConfigError
from trainer.rehearsal.applied_program import (
    AppliedProgram,
    ProgramStore,
    RecordedCall,
    identifiers,
    program_hash,
    replay,
    to_json,
    with_identifiers,
)
from trainer.rehearsal.world import AwsError

ROOT = Path(__file__).resolve().parents[3]


def call(operation: str, *found: str, **params: Any) -> RecordedCall:
    return RecordedCall(service="ec2", operation=operation, params=params, identifiers=found)


def applied(*calls: RecordedCall) -> AppliedProgram:
    return AppliedProgram(account="000000000001", outputs={"vpc": "vpc-0123456789abcdef0"}, calls=calls)


def test_the_unique_ids_of_roles_are_identifiers() -> None:
    """The stack's outputs name one: a replay must not give the role's of the account that was recorded."""
    role = {"RoleId": "AROAQAAAAAAAWA6UJDF3O", "Arn": "arn:aws:iam::000000000001:role/mayfly"}
    assert identifiers({"Role": role}) == ("000000000001", "AROAQAAAAAAAWA6UJDF3O")


def test_a_uuid_is_one_identifier_and_its_end_none_though_it_may_have_digits_only() -> None:
    subscription = "arn:aws:sns:us-east-1:000000000001:mayfly-dev:0a1b2c3d-0a1b-4c5d-8e9f-123456789012"
    assert identifiers({"SubscriptionArn": subscription}) == (
        "000000000001",
        "0a1b2c3d-0a1b-4c5d-8e9f-123456789012",
    )


def test_identifiers_of_the_first_account_are_replaced_wherever_they_stand() -> None:
    made = applied(
        call("CreateVpc", "vpc-0123456789abcdef0", CidrBlock="10.0.0.0/16"),
        call(
            "CreateTags",
            Resources=["vpc-0123456789abcdef0"],
            Policy='{"Resource": "arn:aws:iam::000000000001:role/x"}',
        ),
        call(
            "CreateLaunchTemplate",
            LaunchTemplateData={"UserData": "YnVja2V0PW0tMDAwMDAwMDAwMDAx"},
            Body=b"000000000001",
        ),
    )
    sent = []

    def send(service: str, operation: str, params: dict[str, Any]) -> dict[str, Any]:
        sent.append(params)
        return {"Vpc": {"VpcId": "vpc-aaaaaaaaaaaaaaaaa"}} if operation == "CreateVpc" else {}

    assert replay(made, account="000000000002", send=send) == {"vpc": "vpc-aaaaaaaaaaaaaaaaa"}
    assert sent[1] == {
        "Resources": ["vpc-aaaaaaaaaaaaaaaaa"],
        "Policy": '{"Resource": "arn:aws:iam::000000000002:role/x"}',
    }
    assert sent[2] == {
        "LaunchTemplateData": {"UserData": "YnVja2V0PW0tMDAwMDAwMDAwMDAy"},
        "Body": b"000000000001",
    }


def test_a_bucket_that_is_there_already_is_no_failure_and_anything_else_is() -> None:
    def refuse(code: str) -> Any:
        def send(service: str, operation: str, params: dict[str, Any]) -> dict[str, Any]:
            raise AwsError(code, "no")

        return send

    replay(applied(call("CreateBucket")), account="000000000002", send=refuse("BucketAlreadyOwnedByYou"))
    with pytest.raises(AwsError):
        replay(applied(call("CreateBucket")), account="000000000002", send=refuse("AccessDenied"))
    with pytest.raises(ValueError):
        replay(
            applied(call("CreateVpc", "vpc-0123456789abcdef0")), account="000000000002", send=lambda *_: {}
        )


def test_the_hash_follows_program_package_and_stack(tmp_path: Path) -> None:
    program, package = tmp_path / "program", tmp_path / "package"
    (program / "infra").mkdir(parents=True)
    package.mkdir()
    for file in (program / "Pulumi.yaml", program / "infra" / "network.py", package / "sweep.py"):
        file.write_text("1")
    first = program_hash(program, package, stack="dev")
    assert (
        program_hash(program, package, stack="dev") == first != program_hash(program, package, stack="prod")
    )
    for file in (program / "Pulumi.yaml", program / "infra" / "network.py", package / "sweep.py"):
        file.write_text("2")
        assert (changed := program_hash(program, package, stack="dev")) != first
        first = changed


def test_what_can_not_be_read_is_applied_again_and_a_newer_program_replaces_an_older_one(
    tmp_path: Path,
) -> None:
    store = ProgramStore(tmp_path)
    made = applied(call("CreateVpc", Body=b"\x00\xff", Sizes=[1, 2]))
    with store.locked("new"):
        assert store.read("new") is None
    for text in ("", "[]", "{}", '{"format": 99}', to_json(made).replace('"calls"', '"call"')):
        (tmp_path / "new.json").write_text(text)
        assert store.read("new") is None
    (tmp_path / "old.json").write_text(to_json(made))
    store.write("new", made)
    assert store.read("new") == made and not list(tmp_path.glob("old.*"))
    (tmp_path / "new.json").write_text(to_json(made)[:-9])  # a disk that was full
    assert store.read("new") is None


def test_a_folder_that_cannot_be_made_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    store = ProgramStore(tmp_path / "cache" / "programs")
    with (
        pytest.raises(ConfigError, match=r"programs \(Not a directory\). Set MAYFLY_PROGRAMS"),
        store.locked("key"),
    ):
        raise AssertionError


def test_a_folder_that_others_may_write_is_refused_with_the_remedy(tmp_path: Path) -> None:
    store = ProgramStore(tmp_path / "cache" / "programs")
    with store.locked("key"):
        assert (tmp_path / "cache" / "programs").stat().st_mode & 0o777 == 0o700
    (tmp_path / "cache" / "programs").chmod(0o777)
    with pytest.raises(ConfigError, match="MAYFLY_PROGRAMS"), store.locked("key"):
        raise AssertionError("not reached")


def test_identifiers_are_found_in_order_and_unknown_ones_stay() -> None:
    answer = {
        "B": ["subnet-0123456789abcdef1"],
        "A": {"Arn": "arn:aws:ec2:x:000000000007:y"},
        "ResponseMetadata": {"R": "1" * 12},
    }
    assert identifiers(answer) == ("000000000007", "subnet-0123456789abcdef1")
    assert with_identifiers({"k": "i-0123456789abcdef9"}, {}) == {"k": "i-0123456789abcdef9"}
