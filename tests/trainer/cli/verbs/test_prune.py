"""`mayfly models prune` as a user who has its policy alone: it is enough, and no more; and its bad input."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.iam import assert_allowed_is_needed
from tests.models import make_model
from tests.retrains import CONFIG
from tests.sessions import forget_sessions, sign_in
from trainer.aws.access import aws_error
from trainer.aws.objects import Objects, S3Objects
from trainer.aws.stack import read_stack
from trainer.base.errors import ConnectionFailed
from trainer.base.instants import utc_now
from trainer.cli.main import main
from trainer.cli.verbs import models
from trainer.rehearsal.server import EmbeddedAws

RUN = "20261120-120000-crypto-k3v9"
EXPERIMENT = f"models/experiments/AROA1:i-1/{RUN}/1/lstm_BTC-USD_1m"


@pytest.mark.nightly
def test_its_policy_is_enough_and_no_more(
    aws_server: EmbeddedAws,
    account: Objects,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Any,
) -> None:
    receipt = json.loads(account.get(key=f"runs/{RUN}/receipt.json").body)  # type: ignore[union-attr]
    admin = aws_server.account()
    policy = aws_server.apply_program(admin, CONFIG)["prune_policy_arn"]
    cloud, bucket = aws_server.cloud(admin), read_stack(admin, stack="dev").bucket
    iam, s3 = admin.client("iam"), admin.client("s3")
    iam.create_user(UserName="pruner")
    iam.attach_user_policy(UserName="pruner", PolicyArn=policy)
    key = iam.create_access_key(UserName="pruner")["AccessKey"]
    make_model(tmp_path / "old.safetensors")
    body = (tmp_path / "old.safetensors").read_bytes()
    sha256 = hashlib.sha256(body).hexdigest()

    def put(name: str, content: bytes) -> str:
        metadata = {"Metadata": {"sha256": hashlib.sha256(content).hexdigest()}}
        return str(s3.put_object(Bucket=bucket, Key=name, Body=content, **metadata)["VersionId"])

    version = put(f"{EXPERIMENT}.safetensors", body)
    made = {"key": f"{EXPERIMENT}.safetensors", "version_id": version, "sha256": sha256}
    told = {**receipt, "run_id": RUN, "models": [{**receipt["models"][0], **made}]}
    put(f"{EXPERIMENT}.json", b"{}")
    put(f"runs/{RUN}/receipt.json", json.dumps(told).encode())
    put(f"models/retrains/weekly/{RUN}/lstm_BTC-USD_1m.safetensors", body)
    put("models/production/weekly/lstm_ETH-USD_1m.safetensors", b"another")
    cloud.decisions.clear()
    cloud.clock.advance(timedelta(days=100).total_seconds())
    monkeypatch.setattr("trainer.cli.verbs.models.utc_now", cloud.clock.now)
    sign_in(replace(admin, access_key=key["AccessKeyId"], secret_key=key["SecretAccessKey"]), monkeypatch)

    def mayfly(*words: str) -> Any:
        assert main(["models", "prune", "--older-than", "90", "--keep", "0", *words, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    listed = mayfly()
    assert len(listed["models"]) == 2 and listed["deleted"] == []
    done = mayfly("--delete")
    assert done["deleted"] == [one["key"] for one in listed["models"]]
    forget_sessions()
    left = [item["Key"] for item in s3.list_objects_v2(Bucket=bucket, Prefix="models/")["Contents"]]
    assert left == ["models/production/weekly/lstm_ETH-USD_1m.safetensors"]
    asked = [(one, decision) for who, one, decision in cloud.decisions if who.name == "pruner"]
    document = iam.get_policy_version(PolicyArn=policy, VersionId="v1")["PolicyVersion"]["Document"]
    assert_allowed_is_needed(asked, document, {})


@pytest.mark.parametrize(
    "words", [("--older-than", "1"), ("--older-than", "90", "--keep", "-1"), ("--older-than", "99999999999")]
)
def test_a_rule_that_would_delete_what_is_in_use_is_refused(
    words: tuple[str, ...], account: Objects, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["models", "prune", *words]) == 2
    assert "Give --older-than 2 to 36,500, and --keep 0 or more." in capsys.readouterr().err


def test_what_is_listed_is_deleted_only_if_asked(
    account: Objects, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    key = f"{EXPERIMENT}.safetensors"
    monkeypatch.setattr("trainer.cli.verbs.models.utc_now", lambda: utc_now() + timedelta(days=100))
    words = ["models", "prune", "--older-than", "90"]
    assert main(words) == 0
    assert "keeps 1 of the newest runs" in capsys.readouterr().out
    assert main([*words, "--keep", "0"]) == 0
    out = capsys.readouterr().out
    assert RUN in out and "would delete 1 model, 0.00 GB ($0.00 a month); --delete does" in out
    assert account.head(key=key) is not None
    assert main([*words, "--keep", "0", "--delete"]) == 0
    assert "deleted: 1 model" in capsys.readouterr().out
    assert account.head(key=key) is None
    assert main(["models", "list"]) == 0
    assert capsys.readouterr().out == "no models yet\n"


def test_a_model_promoted_meanwhile_is_not_said_to_be_deleted(
    account: Objects, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    key, plan = f"{EXPERIMENT}.safetensors", models.plan_pruning

    def plan_and_promote(objects: Objects, *rest: Any) -> Any:
        pruning, model = plan(objects, *rest), objects.head(key=key)
        assert model is not None and [one.key for one in pruning.chosen] == [key]
        production = "models/production/main/lstm_BTC-USD_1m.safetensors"
        objects.copy(source=key, version_id=model.version_id, key=production)
        return pruning

    monkeypatch.setattr(models, "utc_now", lambda: utc_now() + timedelta(days=100))
    monkeypatch.setattr(models, "plan_pruning", plan_and_promote)
    assert main(["models", "prune", "--older-than", "90", "--keep", "0", "--delete"]) == 0
    out = capsys.readouterr().out
    assert "deleted: 0 models" in out and "keeps 1 that is needed by now" in out
    assert account.head(key=key) is not None


def test_a_prune_that_breaks_off_says_how_many_are_deleted(
    account: Objects, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, kept = account.head(key=f"{EXPERIMENT}.safetensors"), f"models/retrains/weekly/{RUN}/"
    assert model is not None
    account.copy(
        source=model.key, version_id=model.version_id, key=f"{kept}lstm_BTC-USD_1m.safetensors", create=True
    )
    delete = S3Objects.delete

    def break_off(self: S3Objects, *, key: str, version_id: str) -> None:
        if key.startswith(kept):
            raise ConnectionFailed(f"cannot delete {key}", do="Check the network.")
        delete(self, key=key, version_id=version_id)

    monkeypatch.setattr(S3Objects, "delete", break_off)
    monkeypatch.setattr(models, "utc_now", lambda: utc_now() + timedelta(days=100))
    assert main(["models", "prune", "--older-than", "90", "--keep", "0", "--delete"]) == 103
    err = " ".join(capsys.readouterr().err.split())
    assert "1 of 2 models is deleted; the same command deletes the rest. Check the network." in err
    assert account.head(key=model.key) is None


@pytest.mark.parametrize(
    ("code", "do"), [("ExpiredToken", "Sign in again, or"), ("AccessDenied", "It takes the stack's policy")]
)
def test_only_a_missing_right_sends_to_the_administrator(
    account: Objects, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, code: str, do: str
) -> None:
    def refuse(self: S3Objects, *, key: str, version_id: str) -> None:
        refused = ClientError({"Error": {"Code": code, "Message": "no"}}, "DeleteObject")
        raise aws_error(refused, f"cannot delete {key}")

    monkeypatch.setattr(S3Objects, "delete", refuse)
    monkeypatch.setattr(models, "utc_now", lambda: utc_now() + timedelta(days=100))
    assert main(["models", "prune", "--older-than", "90", "--keep", "0", "--delete"]) == 103
    assert do in " ".join(capsys.readouterr().err.split())
