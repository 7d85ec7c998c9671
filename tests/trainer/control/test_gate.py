"""The gate of a retrain in memory: who is scored on what, what control makes of the scores, and what it is
told that changes nothing.
"""

from __future__ import annotations

import hashlib
import json
import threading
from dataclasses import replace
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from tests.finished import losses_of as losses
from tests.jobs import job_of
from tests.manifests import command, manifest
from tests.records import created, launched, rung, seen
from tests.records import piece as run_piece
from tests.trainer.aws.test_stack_outputs import OUTPUTS
from tests.trainer.conftest import weights
from tests.trainer.control.conftest import MemoryCloud
from tests.trainer.retrains.test_decision import SUNDAY, WEEK
from trainer.aws.place import ACCOUNT
from trainer.base.errors import ConnectionFailed
from trainer.base.instants import iso
from trainer.control import gate, retrain_home
from trainer.control.retrain import advance
from trainer.control.retrain_home import RetrainHome
from trainer.job.job import Job
from trainer.launch.plan import RunPlan
from trainer.retrains.entries import ScheduledRun, entry_key, read_entry, run_id_of
from trainer.runs.deadline import TimeLimit
from trainer.runs.manifest import ManifestInput, read_manifest
from trainer.runs.observation import Observation
from trainer.runs.receipt import make_receipt
from trainer.runs.record import RunRecord
from trainer.runs.record_json import to_json
from trainer.runs.reports import NodeResult
from trainer.runs.store import manifest_key, read_record, receipt_key, record_key
from trainer.store.decisions import read_decision, read_decisions
from trainer.store.production import production_versions

NAME, MODEL = "weekly", "lstm-direction_BTC-USD_1m"
FULL = f"{NAME}/{MODEL}"
JOB = job_of(name="weekly", timeframe="1m", symbols=["BTC-USD"], horizon=1)
DAY = 86_400
# A node's own word: as good as metrics get.
WONDERFUL = {"about": {}, "test": {"n": 9, "log_loss": 0.0}}


class Sundays:
    """A retrain with a gate, and the hands of its nodes."""

    def __init__(self, **setting: Any) -> None:
        self.cloud = MemoryCloud(SUNDAY)
        weekly = {"name": NAME, "weekdays": ["SUN"], "hour": 3, "budget": 5, "budget_month": 50}
        outputs = replace(
            OUTPUTS, retrains=[{**weekly, "promote": "better", **setting}], score_role_id="AROAS"
        )
        self.home = RetrainHome(access=None, outputs=outputs, cloud=self.cloud, publish=print)  # type: ignore
        self.until = SUNDAY

    @property
    def objects(self) -> Any:
        return self.cloud.objects

    def bring(self, until: datetime) -> ManifestInput:
        """Put a file of bars up to a time into the set; return it as a run's input."""
        body = f"bars to {until}".encode()
        sha256, key = hashlib.sha256(body).hexdigest(), f"raw/main/{until:%Y%m%d}.parquet"
        self.objects.write(key, body, sha256)
        last = iso(until - timedelta(minutes=1))
        holds = [{"symbol": "BTC-USD", "bars": 9, "first": "2026-01-01T00:00:00Z", "last": last}]
        index = {"timeframe": "1m", "synthetic": False, "further": [], "holds": holds}
        self.objects.write(f"raw-index/{sha256}.json", json.dumps(index).encode())
        version, size = self.objects.stored[key][-1].version_id, len(body)
        path = f"data/{until:%Y%m%d}.parquet"
        return ManifestInput(path=path, key=key, version_id=version, sha256=sha256, bytes=size)

    def trained(
        self, at: datetime, body: bytes = b"", *, metrics: Any = None, job: Job = JOB
    ) -> ScheduledRun:
        """Let the training of a Sunday end with one model; return its entry after control's next call."""
        self.cloud.clock = at + timedelta(hours=1)
        run_id, file = run_id_of(NAME, at), f"{MODEL}.safetensors"
        made, key = weights(MODEL) + body, f"models/experiments/AROA1:i-1/{run_id}/1/{file}"
        sha256 = hashlib.sha256(made).hexdigest()
        self.objects.write(key, made, sha256)
        version = self.objects.stored[key][-1].version_id
        pinned = manifest(
            run_id=run_id,
            job=job.to_dict(),
            command=command(name="train", tells="events", leaves="models", out_bytes=0),
            inputs=(self.bring(at),),
            pieces=(),
        )
        self.objects.write(manifest_key(run_id), to_json(pinned))
        model = {"piece": "BTC-USD", "model": MODEL, "fold": 1, "seed": 0, "kind": "symbol"}
        model |= {"series": ["BTC-USD"], "family": "lstm", "target": "direction", "key": key}
        model |= {"version_id": version, "sha256": sha256, "metrics": metrics or WONDERFUL}
        record = self.record(run_id, pieces=(run_piece("BTC-USD", model=MODEL),), job=JOB.to_dict())
        self.close(record, models=(model,))
        entry = ScheduledRun(
            retrain=NAME, scheduled_at=at, began_at=at, updated_at=at, state="training", run_id=run_id
        )
        self.objects.write(entry_key(NAME, at), to_json(entry))
        return advance(self.home, entry)

    def record(self, run_id: str, **fields: Any) -> RunRecord:
        from tests.records import make_record

        record = make_record(run_id=run_id, created_at=self.cloud.clock, **fields)
        self.objects.write(record_key(run_id), to_json(record))
        return record

    def close(self, record: RunRecord, error: Any = None, **reported: Any) -> None:
        """Write a run's receipt, as settling does."""
        state = "failed" if error else "done"
        closed = replace(record.ended(state, error, self.cloud.clock), closed_at=self.cloud.clock)
        receipt = make_receipt(closed, Observation(result=NodeResult(state=state, **reported)))
        receipt["dollars"]["spent_high"] = 0.01
        self.objects.write(receipt_key(record.run_id), json.dumps(receipt).encode())

    def asked(self, entry: ScheduledRun) -> dict[str, Any]:
        """Return what the score run of an entry was asked."""
        stored = self.objects.get(key=manifest_key(entry.score_run_id))
        return dict(read_manifest(stored.body).documents["asked.json"])

    def scored(
        self, entry: ScheduledRun, losses: dict[str, Any], *, error: Any = None, **other: Any
    ) -> ScheduledRun:
        """Let the score run end with these losses by side; return the entry after control's next call."""
        record, _ = read_record(self.objects, entry.score_run_id)
        record = replace(record, attempts=launched(created()), instances=(seen(),))
        self.objects.write(record_key(record.run_id), to_json(record))
        (piece,) = self.asked(entry)["pieces"]
        models = [
            {
                **{key: one[key] for key in ("side", "key", "version_id", "sha256")},
                "losses": losses[one["side"]],
            }
            for one in piece["models"]
        ]
        document = {"format": 1, "pieces": [{"piece": "BTC-USD", "models": models}], "failed": []}
        (keys,) = record.nodes
        assert keys.folder.startswith("attempts/AROAS:i-1/")
        self.objects.write(f"{keys.folder}scores.json", json.dumps(document | other).encode())
        self.close(record, error)
        return advance(self.home, entry)

    def champion(self) -> bytes:
        """Return the bytes in production."""
        return production_versions(self.objects, FULL)[0].body


@pytest.fixture(autouse=True)
def offered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plan without an account."""

    def plan(kind: Any, account: Any, *, budget_usd: float, pinned_image: str = "") -> Any:
        limit = TimeLimit(duration=kind.longest, cause=kind.name)
        ladder = (rung("t3.large"),)
        known = {"hard_stop_usd": 0.17, "budget_usd": budget_usd, "estimated_usd": 0.02, "place": ACCOUNT}
        return None, RunPlan(ladder=ladder, run_limit=limit, **known)

    monkeypatch.setattr(gate, "plan_cpu_run", plan)
    monkeypatch.setattr(retrain_home, "check_account", lambda *asked, **more: [])


def test_a_first_model_is_promoted_if_it_beats_its_baselines() -> None:
    sundays = Sundays()
    entry = sundays.trained(SUNDAY)
    assert (entry.state, entry.most_usd) == ("scoring", pytest.approx(0.17 + entry.spent_usd))
    record, _ = read_record(sundays.objects, entry.score_run_id)
    assert (record.work, record.driver, record.instance_role_id) == ("score", "control", "AROAS")
    pinned = read_manifest(sundays.objects.body(manifest_key(entry.score_run_id)))
    kept = f"models/retrains/{NAME}/{entry.run_id}/{MODEL}.safetensors"
    assert {item.key for item in pinned.inputs} == {"raw/main/20261122.parquet", kept}
    assert advance(sundays.home, entry) == entry  # while the run is open
    done = sundays.scored(entry, {"challenger": losses(0.6)})
    assert (done.state, done.promoted, done.error) == ("done", ("BTC-USD",), None)
    assert sundays.champion() == weights(MODEL)
    decision = read_decision(sundays.objects, FULL)
    assert decision is not None and decision.promote and decision.champion is None
    assert (decision.run_id, decision.score_run_id) == (entry.run_id, entry.score_run_id)
    assert decision.numbers["cells"] == 100 and decision.challenge == 1


@pytest.mark.parametrize(("level", "promoted"), [(0.55, True), (0.6, False), (0.599, False), (0.65, False)])
def test_a_challenger_replaces_the_champion_only_if_it_is_better(level: float, promoted: bool) -> None:
    sundays = Sundays(margin=0.01)
    sundays.scored(sundays.trained(SUNDAY), {"challenger": losses(0.6)})
    second = sundays.trained(SUNDAY + WEEK, b" ")
    sides = [one["side"] for one in sundays.asked(second)["pieces"][0]["models"]]
    assert sides == ["challenger", "champion"]
    done = sundays.scored(second, {"challenger": losses(level), "champion": losses(0.6)})
    assert bool(done.promoted) == promoted and done.state == "done"
    assert sundays.champion() == weights(MODEL) + b" " * promoted
    decision = read_decision(sundays.objects, FULL)
    assert decision is not None and (decision.promote, decision.challenge) == (promoted, 1)
    assert decision.winner == hashlib.sha256(sundays.champion()).hexdigest()
    third = sundays.trained(SUNDAY + 2 * WEEK, b"  ")
    sundays.scored(third, {"challenger": losses(0.6), "champion": losses(0.6)})
    decision = read_decision(sundays.objects, FULL)
    assert decision is not None and decision.challenge == (1 if promoted else 2)


def test_a_node_that_claims_other_metrics_changes_nothing() -> None:
    sundays = Sundays()
    entry = sundays.trained(SUNDAY, metrics=WONDERFUL)
    done = sundays.scored(entry, {"challenger": losses(0.7)})
    assert (done.state, done.promoted) == ("done", ()) and "BTC-USD stays" in done.gate
    assert not sundays.objects.list(prefix=f"models/production/{FULL}.safetensors")
    modest = Sundays()
    entry = modest.trained(SUNDAY, metrics={"about": {}, "test": {"n": 9, "log_loss": 9.0}})
    assert modest.scored(entry, {"challenger": losses(0.6)}).promoted == ("BTC-USD",)


def test_a_searchs_trials_are_counted_by_the_job() -> None:
    over = {"search.over": {"train.learning_rate": {"low": 1e-4, "high": 1e-2}}, "search.trials": 2_000}
    searching = job_of(name="weekly", timeframe="1m", symbols=["BTC-USD"], horizon=1, **over)
    numbers = []
    for job in (JOB, searching):
        sundays = Sundays()
        claims = {**WONDERFUL, "about": {**JOB.target.about(), "tried": 2}}
        sundays.scored(sundays.trained(SUNDAY, metrics=claims, job=job), {"challenger": losses(0.6996)})
        decision = read_decision(sundays.objects, FULL)
        assert decision is not None
        numbers.append(decision.numbers)
    assert [one["tried"] for one in numbers] == [1, 2_000]
    assert [one["baselines"]["mark"] for one in numbers] == ["better", "too little to tell"]
    assert [one["baselines"]["p"] for one in numbers] == [numbers[0]["baselines"]["p"]] * 2


def test_whatever_fails_the_champion_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    error = {"code": 101, "what": "no capacity", "why": "", "do": ""}
    other = {"challenger": losses(0.55), "champion": losses(0.6)}
    for broken in (
        {"error": error},
        {"format": 2},
        {"pieces": []},
        {"failed": [{"piece": "BTC-USD", "reason": "twice"}]},
    ):
        sundays = Sundays()
        sundays.scored(sundays.trained(SUNDAY), {"challenger": losses(0.6)})
        second = sundays.trained(SUNDAY + WEEK, b" ")
        done = sundays.scored(second, other, **broken)
        assert (done.state, done.promoted, done.error) == ("done", (), None)
        assert done.gate.startswith("the champions stay") and sundays.champion() == weights(MODEL)
        assert done.spent_usd >= second.spent_usd
    # One that can't even be planned.
    monkeypatch.setattr(
        gate, "refuse_beyond_month", lambda *asked: (_ for _ in ()).throw(gate.BudgetError("spent"))
    )
    done = sundays.trained(SUNDAY + 2 * WEEK, b"  ")
    assert (done.state, done.gate) == ("done", "the champions stay: spent")


def test_a_score_run_that_lost_its_manifest_keeps_the_champion() -> None:
    sundays = Sundays()
    entry = sundays.trained(SUNDAY)
    record, _ = read_record(sundays.objects, entry.score_run_id)
    del sundays.objects.stored[manifest_key(record.run_id)]
    sundays.close(record)
    done = advance(sundays.home, entry)
    assert (done.state, done.promoted) == ("done", ()) and "cannot read the manifest" in done.gate


def test_a_rule_that_changed_meanwhile_keeps_the_champion() -> None:
    for changed, why in (
        ({"gate": "shadow"}, "gate was changed"),
        ({"promote": "never"}, "promotes nothing"),
    ):
        sundays = Sundays()
        entry = sundays.trained(SUNDAY)
        (weekly,) = sundays.home.outputs.retrains
        outputs = replace(sundays.home.outputs, retrains=[weekly | changed])
        sundays.home = replace(sundays.home, outputs=outputs)
        done = sundays.scored(entry, {"challenger": losses(0.6)})
        assert (done.state, done.promoted) == ("done", ()) and why in done.gate


def test_a_champion_that_was_replaced_meanwhile_stays() -> None:
    sundays = Sundays()
    sundays.scored(sundays.trained(SUNDAY), {"challenger": losses(0.6)})
    second = sundays.trained(SUNDAY + WEEK, b" ")
    sundays.objects.write(f"models/production/{FULL}.safetensors", b"by hand", "ab" * 32)
    done = sundays.scored(second, {"challenger": losses(0.55), "champion": losses(0.6)})
    assert done.promoted == () and "replaced meanwhile" in done.gate and sundays.champion() == b"by hand"


@pytest.mark.parametrize("kill_at", range(1, 8))
def test_a_call_that_is_cut_off_anywhere_is_continued(kill_at: int) -> None:
    sundays = Sundays()
    entry = sundays.trained(SUNDAY)
    before = len(sundays.cloud.calls)
    sundays.cloud.kill_at = before + kill_at
    try:
        done = sundays.scored(entry, {"challenger": losses(0.6)})
    except BaseException as cut:
        assert type(cut).__name__ == "CallerKilled"
        sundays.cloud.kill_at = None
        done = advance(sundays.home, read_entry(sundays.objects, entry_key(NAME, SUNDAY))[0])
    assert (done.state, done.promoted) == ("done", ("BTC-USD",)) and sundays.champion() == weights(MODEL)
    assert len(production_versions(sundays.objects, FULL)) == 1
    made = read_decisions(sundays.objects, NAME, entry.run_id)
    assert made is not None and [one.challenge for one in made] == [1]
    last = read_decision(sundays.objects, FULL)
    assert last is not None and last.challenge == 1


def test_a_network_that_fails_puts_a_decision_off(monkeypatch: pytest.MonkeyPatch) -> None:
    sundays = Sundays()
    entry = sundays.trained(SUNDAY)

    def busy(*_: Any) -> None:
        raise ConnectionFailed("cannot read the decision", why="SlowDown", do="Try again.")

    with monkeypatch.context() as network:
        network.setattr(gate, "read_decision", busy)
        with pytest.raises(ConnectionFailed):
            sundays.scored(entry, {"challenger": losses(0.6)})
    assert read_decisions(sundays.objects, NAME, entry.run_id) is None
    done = advance(sundays.home, read_entry(sundays.objects, entry_key(NAME, SUNDAY))[0])
    assert (done.state, done.promoted) == ("done", ("BTC-USD",))


def test_a_shadow_scores_bars_that_came_after_both_trainings() -> None:
    sundays = Sundays(gate="shadow", least_cells=20)
    entries = [sundays.trained(SUNDAY + number * WEEK, b" " * number) for number in range(4)]
    assert [one.state for one in entries] == ["done", "done", "done", "scoring"]
    assert "cells of bars that came after" in entries[0].gate
    # The newest one with 20 days: the first. Its machine had gone an hour after its Sunday.
    (piece,) = sundays.asked(entries[3])["pieces"]
    assert piece["since"] == (SUNDAY + timedelta(hours=1)).timestamp()
    assert piece["models"][0]["key"].split("/")[3] == entries[0].run_id
    pinned = read_manifest(sundays.objects.body(manifest_key(entries[3].score_run_id)))
    assert "raw/main/20261213.parquet" in {item.key for item in pinned.inputs}
    early = sundays.scored(entries[3], {"challenger": losses(0.6, cells=20, since=int(piece["since"]) - DAY)})
    assert early.promoted == () and "can't be used" in early.gate  # bars that its node may have seen

    fifth = sundays.trained(SUNDAY + 4 * WEEK, b"     ")
    (piece,) = sundays.asked(fifth)["pieces"]
    assert piece["models"][0]["key"].split("/")[3] == entries[1].run_id  # the newest that has them
    few = sundays.scored(fifth, {"challenger": losses(0.6, cells=19, since=int(piece["since"]))})
    assert few.promoted == () and "they are scored again later" in few.gate
    sixth = sundays.trained(SUNDAY + 5 * WEEK, b"      ")
    (piece,) = sundays.asked(sixth)["pieces"]
    run_id = piece["models"][0]["key"].split("/")[3]
    assert run_id == entries[1].run_id  # again: a newer one would have 19, too
    done = sundays.scored(sixth, {"challenger": losses(0.6, cells=20, since=int(piece["since"]))})
    assert done.promoted == () and "p =" in done.gate or done.promoted == ("BTC-USD",)


def test_a_shadow_waits_for_as_many_days_as_its_data_has() -> None:
    sundays, ages, runs = Sundays(gate="shadow", least_cells=20), dict[int, int](), dict[str, int]()
    for week in range(9):  # of stocks: five days each
        entry = sundays.trained(SUNDAY + week * WEEK, b" " * week)
        runs[entry.run_id] = week
        if entry.state == "scoring":
            (piece,) = sundays.asked(entry)["pieces"]
            ages[week] = week - runs[piece["models"][0]["key"].split("/")[3]]
            made = losses(0.9, cells=5 * ages[week], since=int(piece["since"]))
            entry = sundays.scored(entry, {"challenger": made})
        assert ("scored again later" in entry.gate) == (week == 3)
    # Once to learn it; then the newest with four weeks, each Sunday.
    assert ages == {3: 3, 4: 4, 5: 4, 6: 4, 7: 4, 8: 4}


def test_a_shadow_looks_as_far_back_as_its_cells_lie() -> None:
    """A daily retrain whose models need 60 days of newer bars: the one of 61 days ago is not among its last
    40 times.
    """
    sundays = Sundays(gate="shadow", weekdays=["MON", "TUE", "WED", "THU", "FRI", "SAT", "SUN"])
    first = sundays.trained(SUNDAY)
    for days in range(1, 61):
        at = SUNDAY + timedelta(days=days)
        entry = ScheduledRun(retrain=NAME, scheduled_at=at, began_at=at, updated_at=at, state="skipped")
        sundays.objects.write(entry_key(NAME, at), to_json(replace(entry, told_at=at)))
    last = sundays.trained(SUNDAY + timedelta(days=61), b" ")
    assert (last.state, last.gate) == ("scoring", "")
    (piece,) = sundays.asked(last)["pieces"]
    assert piece["models"][0]["key"].split("/")[3] == first.run_id


def test_decisions_about_many_models_are_made_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each asks S3 for the last one; one after another, those of thousands fill a call of control."""
    pieces = [SimpleNamespace(piece=name, since=0) for name in "abcd"]
    together, made = threading.Barrier(len(pieces), timeout=20), list[str]()

    def decided(*given: Any) -> Any:
        together.wait()
        return SimpleNamespace(piece=given[-2].piece, run_id="r", numbers={})

    def create(_: Any, retrain: str, run_id: str, decisions: Any) -> None:
        made.extend(one.piece for one in decisions)

    scored: Any = (JOB, SimpleNamespace(pieces=pieces), dict.fromkeys("abcd"))
    monkeypatch.setattr(gate, "read_record", lambda *_, **__: (None, ""))
    monkeypatch.setattr(gate, "_scored", lambda *_: scored)
    monkeypatch.setattr(gate, "_decision", decided)
    monkeypatch.setattr(gate, "create_decisions", create)
    monkeypatch.setattr(gate, "_carried_out", lambda *_: None)
    home: Any = SimpleNamespace(cloud=SimpleNamespace(objects=None))
    entry: Any = SimpleNamespace(score_run_id="s", retrain=NAME)
    schedule: Any = SimpleNamespace(gate="test")
    gate.after_scoring(home, entry, schedule)
    assert made == [*"abcd"]
