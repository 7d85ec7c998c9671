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


def test_a_uuid_is_one_identifier_and_its_end_is_none() -> None:
    subscription = "arn:aws:sns:us-east-1:000000000001:mayfly-dev:0a1b2c3d-0a1b-4c5d-8e9f-123456789012"
    found = identifiers({"SubscriptionArn": subscription})
    assert found == ("000000000001", "0a1b2c3d-0a1b-4c5d-8e9f-123456789012")


def test_a_replay_replaces_the_first_accounts_identifiers() -> None:
    def tags(account: str, vpc: str) -> dict[str, Any]:
        return {"Resources": [vpc], "Policy": f'{{"Resource": "arn:aws:iam::{account}:role/x"}}'}

    def template(user_data: str) -> dict[str, Any]:
        return {"LaunchTemplateData": {"UserData": user_data}, "Body": b"000000000001"}

    made = applied(
        call("CreateVpc", "vpc-0123456789abcdef0", CidrBlock="10.0.0.0/16"),
        call("CreateTags", **tags("000000000001", "vpc-0123456789abcdef0")),
        call("CreateLaunchTemplate", **template("YnVja2V0PW0tMDAwMDAwMDAwMDAx")),
    )
    sent = []

    def send(service: str, operation: str, params: dict[str, Any]) -> dict[str, Any]:
        sent.append(params)
        return {"Vpc": {"VpcId": "vpc-aaaaaaaaaaaaaaaaa"}} if operation == "CreateVpc" else {}

    assert replay(made, account="000000000002", send=send) == {"vpc": "vpc-aaaaaaaaaaaaaaaaa"}
    assert sent[1] == tags("000000000002", "vpc-aaaaaaaaaaaaaaaaa")
    assert sent[2] == template("YnVja2V0PW0tMDAwMDAwMDAwMDAy")


def test_a_replay_takes_an_existing_bucket_and_no_other_error() -> None:
    def refuse(code: str) -> Any:
        def send(service: str, operation: str, params: dict[str, Any]) -> dict[str, Any]:
            raise AwsError(code, "no")

        return send

    replay(applied(call("CreateBucket")), account="000000000002", send=refuse("BucketAlreadyOwnedByYou"))
    with pytest.raises(AwsError):
        replay(applied(call("CreateBucket")), account="000000000002", send=refuse("AccessDenied"))
    with pytest.raises(ValueError):
        made = applied(call("CreateVpc", "vpc-0123456789abcdef0"))
        replay(made, account="000000000002", send=lambda *_: {})


def test_the_hash_follows_program_package_and_stack(tmp_path: Path) -> None:
    program, package = tmp_path / "program", tmp_path / "package"
    (program / "infra").mkdir(parents=True)
    package.mkdir()
    files = (program / "Pulumi.yaml", program / "infra" / "network.py", package / "sweep.py")
    for file in files:
        file.write_text("1")
    first, again, other = (program_hash(program, package, stack=one) for one in ("dev", "dev", "prod"))
    assert again == first != other
    for file in files:
        file.write_text("2")
        assert (changed := program_hash(program, package, stack="dev")) != first
        first = changed


def test_the_hash_of_a_program_leaves_its_bytecode_out(tmp_path: Path) -> None:
    """pip compiles ami/smoke_test.py of a wheel, and leaves a folder beside it."""
    (tmp_path / "ami").mkdir()
    (tmp_path / "ami" / "smoke_test.py").write_text("")
    fresh = program_hash(tmp_path, tmp_path, stack="dev")
    (tmp_path / "ami" / "__pycache__").mkdir()
    (tmp_path / "ami" / "__pycache__" / "smoke_test.cpython-311.pyc").write_bytes(b"code")
    assert program_hash(tmp_path, tmp_path, stack="dev") == fresh


def test_damaged_and_older_applications_are_not_replayed(
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
    error = r"programs \(Not a directory\). Set MAYFLY_PROGRAMS"
    with pytest.raises(ConfigError, match=error), store.locked("key"):
        raise AssertionError


def test_a_folder_that_others_may_write_is_refused(tmp_path: Path) -> None:
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
