"""Two Sundays of a retrain with a gate on the embedded AWS, whose policies are evaluated: champion and
challenger are scored on a machine of their own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from scripts.weekly import Weeks, desk_variables, weeks
from tests.aws.server import CheckedAws
from tests.iam import assert_allowed_is_needed
from tests.retrains import CONFIG, RETRAINS, SUNDAYS
from tests.sessions import forget_sessions
from trainer.base.html import embedded_json
from trainer.base.instants import from_iso
from trainer.cli.main import main
from trainer.control.cloud import AwsCloud
from trainer.control.report import report_of
from trainer.runs.store import read_record
from trainer.runs.stored_receipt import read_receipt
from trainer.store.decisions import read_decision, read_decisions
from trainer.store.production import production_versions

NAME, SYMBOLS = "waiting", ("SIG-USD", "TWO-USD")
JOB = """
name = "signal"
[model]
hidden = 16
[target]
horizon = 1
[train]
epochs = 2
batch = 128
learning_rate = 1e-2
[machine]
instance = ["g6.xlarge"]
"""
REFIT_JOB = JOB.replace("epochs = 2\n", "epochs = 2\nrefit = true\n")
# Rates and sizes are searched, and each symbol reads the other one and the index of both.
SEARCH_JOB = (
    JOB.replace("epochs = 2\n", "epochs = 2\nrefit = true\n")
    + """
[data]
columns = ["log_return_5 of SIG-USD", "log_return_1 of index"]
[search]
method = "grid"
over = { "train.learning_rate" = [1e-2, 1e-5], "model.hidden" = [8, 16] }
"""
)
# An agent of each symbol, at costs that six hours of a trend pay.
AGENTS_JOB = """
name = "signal"
[model]
name = "mlp"
hidden = 16
lookback = 8
[target]
name = "position"
fee = 1e-5
slippage = 0.0
[train]
epochs = 6
patience = 6
batch = 128
learning_rate = 3e-3
[machine]
instance = ["g6.xlarge"]
"""
# A model and a target of the user's own: the next bar's return, by its squared error.
OWN_JOB = JOB.replace("[model]\n", '[model]\nfile = "net.py"\nclass = "Net"\nlookback = 24\n').replace(
    "[target]\nhorizon = 1\n", '[target]\nfile = "next.py"\nclass = "Next"\n'
)
OWN_FILES = {
    "net.py": """
from torch import nn

class Net(nn.Module):
    def __init__(self, features, outputs, hidden):
        super().__init__()
        self.gru, self.head = nn.GRU(features, hidden, batch_first=True), nn.Linear(hidden, outputs)

    def forward(self, x_NLF):
        return self.head(self.gru(x_NLF)[0][:, -1])
""",
    "next.py": """
import numpy as np

class Next:
    def label(self, candles):
        close = candles.close
        label, end = np.zeros(len(close)), np.arange(1, len(close) + 1)
        label[:-1], end[-1] = 1e3 * np.diff(np.log(close)), -1
        return label, end

    def loss(self, outputs, labels):
        return (outputs - labels).square().sum(-1)
""",
}
SHADOW = {"name": "shadow", **SUNDAYS, "budget": 1, "budget_month": 9, "promote": "better"}
SHADOW |= {"gate": "shadow", "least_cells": 20}
Begin = Callable[..., AbstractContextManager[Weeks]]


@pytest.fixture
def begin(programs: Path, fork_server: Path, monkeypatch: pytest.MonkeyPatch) -> Begin:
    """Return a function that makes an account of an embedded AWS whose schedules fire and whose nodes run as
    forks, and a desk.
    """

    @contextmanager
    def made(config: dict[str, str], name: str) -> Iterator[Weeks]:
        with (
            CheckedAws(
                programs=programs, fork_nodes=True, fork_server=lambda: fork_server, grace_seconds=120
            ) as aws,
            weeks(aws, config, name=name) as story,
        ):
            for variable, value in desk_variables(story.access).items():
                monkeypatch.setenv(variable, value)
            forget_sessions()
            yield story
            forget_sessions()

    return made


def bring_hours(story: Weeks, folder: Path, begins: str, hours: int, symbol: str = "SIG-USD") -> None:
    """Put hourly bars into the data set that rise for six hours and fall for six."""
    start, hour = np.datetime64(begins, "ns"), np.timedelta64(3_600_000_000_000, "ns")
    hour_T = np.arange(hours)
    noise_T = 2e-4 * np.random.default_rng(SYMBOLS.index(symbol)).standard_normal(len(hour_T))
    close_T = 100 * np.exp(np.cumsum(4e-4 * np.where(hour_T // 6 % 2, -1, 1) + noise_T))
    open_T = np.concatenate([[100.0], close_T[:-1]])
    prices = {"high": np.maximum(open_T, close_T), "low": np.minimum(open_T, close_T), "close": close_T}
    columns = {"timestamp": start + hour_T * hour, "open": open_T, **prices, "volume": np.ones(len(hour_T))}
    file = folder / f"{symbol}_1h_{begins[:10]}.parquet"
    pq.write_table(pa.table(columns), file)
    s3 = story.access.client("s3")
    s3.put_object(Bucket=story.outputs.bucket, Key=f"raw/main/{file.name}", Body=file.read_bytes())


def receipt_of(story: Weeks, run_id: str) -> Any:
    receipt = read_receipt(story.objects, run_id)
    assert receipt is not None and receipt["state"] == "done", receipt and receipt["error"]
    return receipt


@pytest.mark.nightly
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize(
    ("job", "tried"),
    [(JOB, 1), (OWN_JOB, 1), (REFIT_JOB, 1), (SEARCH_JOB, 4), (AGENTS_JOB, 1)],
    ids=["ours", "own", "refit", "search", "agents"],
)
def test_a_challenger_is_scored_on_a_machine_of_its_own(
    job: str,
    tried: int,
    begin: Begin,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in {"job.toml": job, **OWN_FILES}.items():
        (tmp_path / name).write_text(text)
    with begin(CONFIG, NAME) as story:
        two_sundays(story, tmp_path, capsys, tried=tried)


def two_sundays(story: Weeks, tmp_path: Path, capsys: pytest.CaptureFixture[str], *, tried: int) -> None:
    """The first model of each symbol, the best of so many trials, is promoted, and stays beside one that is as
    good.
    """
    for symbol in SYMBOLS:
        bring_hours(story, tmp_path, "2025-01-01T00:00", 12_000, symbol)
    assert main(["retrains", "publish", NAME, "--job", "job.toml", "--json"]) == 0
    notes = json.loads(capsys.readouterr().out)["notes"]
    assert any(
        note.startswith("after it champion and challenger are scored on t3.large, 120") for note in notes
    )
    scheduler = story.access.client("scheduler")
    for retrain in RETRAINS:
        if retrain["name"] != NAME:
            scheduler.delete_schedule(GroupName="mayfly-dev-retrains", Name=retrain["name"])

    first = story.next_sunday()
    list(story.watch(first))
    (entry,) = story.entries()
    assert (entry.state, entry.error) == ("done", None)
    trained, scored = receipt_of(story, entry.run_id), receipt_of(story, entry.score_run_id)
    assert (trained["work"], scored["work"]) == ("train", "score")
    machines = [one["instance_type"] for run in (trained, scored) for one in run["instances"]]
    assert machines == ["g6.xlarge", "t3.large"]
    spent = sum(run["dollars"]["spent_high"] for run in (trained, scored))
    assert entry.spent_usd == pytest.approx(spent) and spent <= entry.most_usd <= 1
    assert sorted(entry.promoted) == list(SYMBOLS), entry.gate  # scored in a process each
    file = trained["models"][0]["key"].rpartition("/")[-1]
    model = f"{NAME}/{file.removesuffix('.safetensors')}"
    champion = story.objects.head(key=f"models/production/{NAME}/{file}")
    assert champion is not None and champion.checksum
    decision = read_decision(story.objects, model)
    assert decision is not None and decision.promote and decision.champion is None
    assert (decision.winner, decision.run_id) == (champion.sha256, entry.run_id)
    assert decision.numbers["cells"] >= 60 and decision.numbers["baselines"]["mark"] == "better"
    assert decision.numbers["tried"] == tried == trained["models"][0]["metrics"]["about"].get("tried", 1)
    assert len(trained.get("trials", ())) == (len(SYMBOLS) * tried if tried > 1 else 0)

    # The next Sunday there are no new bars: the challenger is as good as its champion, which stays.
    second = story.next_sunday()
    list(story.watch(second))
    entry = story.entries()[-1]
    assert (entry.state, entry.promoted) == (
        "done",
        (),
    ) and entry.gate.startswith("0 of 2 go to production; ")
    assert all(f"{symbol} stays" in entry.gate for symbol in SYMBOLS)
    scored = receipt_of(story, entry.score_run_id)
    record, _ = read_record(story.objects, entry.score_run_id)
    page = json.loads(embedded_json(report_of(AwsCloud(story.access, story.outputs), record, scored)))
    assert ["scored", f"2 models of {entry.run_id}, 2 against production"] in page["asked"]
    assert sorted((one["piece"], one["promote"]) for one in page["gate"]) == [(one, False) for one in SYMBOLS]
    decision = read_decision(story.objects, model)
    assert decision is not None and not decision.promote and decision.challenge == 1
    assert decision.champion is not None and decision.winner == champion.sha256
    assert [one.version_id for one in production_versions(story.objects, model)] == [champion.version_id]
    told = [text for text in story.posted if text.startswith(f"mayfly {NAME}: done")]
    assert "gate: 2 of 2 go to production" in told[0]
    assert f"to production: {', '.join(story.entries()[0].promoted)}" in told[0]

    # The scorer's role is enough for all of that, and no more than it needs.
    role = f"mayfly-dev-{story.outputs.region}-score"
    policy = story.access.client("iam").get_role_policy(RoleName=role, PolicyName="score")["PolicyDocument"]
    cloud = story.aws.cloud(story.access)
    decided = [(asked, decision) for who, asked, decision in cloud.decisions if who.role == role]
    assert_allowed_is_needed(decided, policy, {})


@pytest.mark.nightly
@pytest.mark.timeout(2_400)
def test_a_shadow_scores_the_weeks_after_a_training(
    begin: Begin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.toml").write_text(JOB)
    with begin({"retrains": json.dumps([SHADOW])}, "shadow") as story:
        cloud = story.aws.cloud(story.access)
        until = cloud.clock.now().replace(minute=0, second=0, microsecond=0)
        bring_hours(story, tmp_path, f"{until - timedelta(hours=4_000):%Y-%m-%dT%H:%M}", 4_000)
        assert main(["retrains", "publish", "shadow", "--job", "job.toml", "--json"]) == 0
        capsys.readouterr()
        entries = []
        for number in range(5):
            coming = next(story.schedule.times(cloud.clock.now()))
            hours = int((coming - until) / timedelta(hours=1))
            if number:
                bring_hours(story, tmp_path, f"{until:%Y-%m-%dT%H:%M}", hours)
                until += timedelta(hours=hours)
            list(story.watch(story.next_sunday()))
            entries.append(story.entries()[-1])
            assert (entries[-1].state, entries[-1].error) == ("done", None)
            if entries[-1].score_run_id:
                break
        assert len(entries) >= 4 and not any(entry.score_run_id for entry in entries[:-1])
        assert "cells of bars that came after" in entries[0].gate
        scored = receipt_of(story, entries[-1].score_run_id)
        (decision,) = read_decisions(story.objects, "shadow", entries[0].run_id) or ()
        closed = from_iso(receipt_of(story, entries[0].run_id)["closed_at"]).timestamp()
        assert (decision.gate, decision.run_id) == ("shadow", entries[0].run_id)
        assert decision.numbers["cells"] >= 20, decision
        (keys,) = read_record(story.objects, scored["run_id"])[0].nodes
        stored = story.objects.get(key=f"{keys.folder}scores.json")
        assert stored is not None
        (piece,) = json.loads(stored.body)["pieces"]
        begins = piece["models"][0]["losses"]["begins"]
        assert closed <= begins[0] <= closed + 3_600 and begins[-1] < entries[-1].scheduled_at.timestamp()
