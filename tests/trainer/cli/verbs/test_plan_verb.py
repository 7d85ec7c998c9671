"""`mayfly plan` without an account: every line by hand from the lists, its choice, its errors."""

from __future__ import annotations

import csv
import io
import json
import math
import subprocess
import sys
import tomllib
from dataclasses import replace
from datetime import datetime, timezone
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from trainer.aws.stack import read_stack
from trainer.cli.main import main
from trainer.launch import offline
from trainer.runs.calibration import Calibrated

NUMBERS = ["plan", "--symbols", "20", "--bars", "500000", "--model", "lstm"]


@pytest.fixture(autouse=True)
def no_account(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MAYFLY_PROFILES", str(tmp_path / "profiles.toml"))
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("trainer.cli.verbs.plan.utc_now", lambda: datetime(2026, 11, 26, tzinfo=timezone.utc))


def planned(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main([*NUMBERS, *words, "--json"]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    code = main(["plan", *words])
    lines = capsys.readouterr().err.strip().splitlines()
    assert lines[0].startswith("error: ")
    return code, " ".join(" ".join(lines).split())


def table(name: str) -> list[dict[str, str]]:
    text = (files("trainer.machines") / name).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


# By hand: 20 LSTMs of 500,000 bars, 15 epochs. 70 % of the bars train, less the 60 that a window sees and the
# warm-up of its features; 15 % validate, at 0.35 of the price.
VISITS = 15 * (350_000 - 60 + 0.35 * 75_000)
BOOTS = {"g4dn.metal": 900.0, "g4dn.12xlarge": 150.0, "p4d.24xlarge": 300.0, "g5.48xlarge": 240.0}


def by_hand(row: dict[str, str], boot: float, rate: float) -> float:
    """Return a run's seconds: boot, 120 MB read, the models of the busiest GPU, 20 models written, shutdown."""
    network = float(row["network_gbps_baseline"]) * 1e9 / 8
    stage = 20 * 500_000 * 12 / min(network, 0.6e9)
    upload = 30 + 20 * 59_713 * 4 / min(network, 0.35e9)
    of_one_gpu = math.ceil(20 / max(1, int(float(row["gpu_count"]))))
    return boot + stage + of_one_gpu * VISITS / rate + upload


def test_every_line_is_what_the_price_lists_give_by_hand(capsys):
    document = planned(capsys)
    rows = {row["instance_type"]: row for row in table("instances.csv")}
    text = (files("trainer.machines") / "gpu_profiles.toml").read_text(encoding="utf-8")
    rates: dict[str, float] = {}  # of a whole chip, which comes before its shares
    for profile in tomllib.loads(text).values():
        for device in profile["devices"]:
            rates.setdefault(device, profile["windows_per_second"])
    shares = {"NVIDIA L4 (fraction)": 150_000}
    checked = 0
    for line in document["candidates"]:
        name = line["instance_type"]
        row = rows[name]
        on_demand = float(row["on_demand_usd_per_hour_us_east_1"])
        chip = next(
            rates[one] for one in sorted(rates, key=len, reverse=True) if row["gpu_model"].startswith(one)
        )
        rate = shares.get(row["gpu_model"], 0) * float(row["gpu_count"]) or chip
        boot = line["seconds"]["boot"]
        assert boot == BOOTS.get(name, boot)
        seconds, price = by_hand(row, boot, rate), on_demand
        if line["market"] == "spot":
            if not row["spot_as_of"]:
                assert line["refused"] == "its spot price is not in the list"
                continue
            price = on_demand * (100 - int(row["spot_saving_percent"])) / 100
            # a tenth of a loss an hour: another boot, two minutes to find it, two minutes trained again
            seconds += 0.1 * seconds / 3600 * (boot + 120 + 120)
        assert line["price_usd_per_hour"] == pytest.approx(price), name
        assert line["seconds"]["p50"] == pytest.approx(seconds, abs=0.6), name
        assert line["seconds"]["p90"] == pytest.approx(1.6 * seconds, abs=0.6), name
        assert line["dollars"]["p50"] == pytest.approx(seconds * price / 3600, abs=1e-4), name
        quoted = row["sagemaker_price_basis"].startswith("price_list_quote")
        sagemaker = by_hand(row, boot, rate) * float(row["sagemaker_usd_per_hour"]) / 3600 if quoted else None
        assert line["sagemaker_dollars"] == (pytest.approx(sagemaker, abs=1e-4) if quoted else None), name
        assert line["rate"]["source"] == "formula"
        checked += 1
    assert checked > 40
    for line in document["outside"]:
        row = next(
            one
            for one in table("outside.csv")
            if line["instance_type"].startswith(f"{one['seller']} {one['gpus']}×")
            and one["gpu_model"] == line["gpu_model"]
        )
        assert line["price_usd_per_hour"] == pytest.approx(int(row["gpus"]) * float(row["usd_per_gpu_hour"]))
        assert line["price_date"] == row["as_of"] and line["source"] == row["source"] != ""
        assert line["dollars"]["p50"] == pytest.approx(
            line["seconds"]["p50"] * line["price_usd_per_hour"] / 3600, rel=2e-3
        )


def test_a_job_without_checkpoints_is_planned_without_them(capsys):
    document = planned(capsys, "--set", "train.checkpoint_seconds=0")
    assert document["checkpoints"] is None
    assert document["outside"] and {line["market"] for line in document["candidates"]} == {"on_demand"}


def test_the_choice_is_the_least_of_its_objective(capsys):
    document = planned(capsys)
    usable = [line for line in document["candidates"] if not line["refused"]]

    def named(line: dict[str, Any]) -> dict[str, Any]:
        return {key: line[key] for key in ("instance_type", "market")}

    cheapest = min(usable, key=lambda line: line["dollars"]["p50"])
    fastest = min(usable, key=lambda line: (line["seconds"]["p50"], line["dollars"]["p50"]))
    assert document["choice"]["cheapest"] == named(cheapest)
    assert document["choice"]["fastest"] == named(fastest)
    product = min(usable, key=lambda line: line["dollars"]["p50"] * line["seconds"]["p50"])
    assert document["choice"]["recommended"] == named(product)
    assert planned(capsys, "--objective", "cost")["choice"]["recommended"] == named(cheapest)
    assert planned(capsys, "--objective", "time")["choice"]["recommended"] == named(fastest)
    why = " ".join(document["choice"]["why"])
    assert (
        "4 GPUs: 1 GPU would take" in why
        and "(no type has 2 or 3 of them)" in why
        and "spot: it saves $" in why
    )


def test_a_deadline_leaves_what_nine_of_ten_runs_meet(capsys):
    document = planned(capsys, "--deadline", "10m", "--objective", "cost")
    taken = document["choice"]["recommended"]
    (line,) = (
        one
        for one in document["candidates"]
        if (one["instance_type"], one["market"]) == (taken["instance_type"], taken["market"])
    )
    assert line["seconds"]["p90"] <= 600
    code, words = refused(capsys, *NUMBERS[1:], "--deadline", "2m")
    assert code == 104 and "no run ends within 2 min" in words and "nine of ten runs end within" in words


def test_numbers_and_a_job_with_its_data_make_the_same_plan(capsys, tmp_path):
    for name in ("AAA", "BBB"):
        lines = ["timestamp,open,high,low,close,volume"]
        lines += [
            f"2026-01-{day:02d}T{hour:02d}:00:00Z,1,2,1,2,3" for day in range(1, 29) for hour in range(24)
        ]
        (tmp_path / f"{name}_1h.csv").write_text("\n".join(lines) + "\n")
    assert main(["plan", "--data", str(tmp_path), "--json"]) == 0
    counted = json.loads(capsys.readouterr().out)
    assert counted["data"]["bars"] == {"AAA": 672, "BBB": 672} and counted["data"]["timeframe"] == "1h"
    assert main(["plan", "--symbols", "2", "--bars", "672", "--timeframe", "1h", "--json"]) == 0
    named = json.loads(capsys.readouterr().out)

    def trained(document: dict[str, Any]) -> list[float]:
        return [line["seconds"]["train"] for line in document["candidates"]]

    assert sorted(trained(counted)) == sorted(trained(named))


def hourly(folder: Path, *names: str, timeframe: str = "1h") -> None:
    lines = ["timestamp,open,high,low,close,volume"]
    lines += [f"2026-01-{day:02d}T{hour:02d}:00:00Z,1,2,1,2,3" for day in range(1, 29) for hour in range(24)]
    for name in names:
        (folder / f"{name}_{timeframe}.csv").write_text("\n".join(lines) + "\n")


def test_longer_bars_are_counted_as_made_from_shorter(capsys, tmp_path):
    hourly(tmp_path, "AAA")
    assert main(["plan", "--data", str(tmp_path), "--timeframe", "4h", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)["data"]
    assert (data["bars"], data["timeframe"]) == ({"AAA": 168}, "4h")
    hourly(tmp_path, "AAA", timeframe="30m")  # as a training: of the longest that it can be made from
    assert main(["plan", "--data", str(tmp_path), "--timeframe", "4h", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["data"]["bars"] == {"AAA": 168}
    code, words = refused(capsys, "--data", str(tmp_path), "--timeframe", "45m")
    assert code == 2 and "holds no 45m bars (it has 1h, 30m)" in words


def test_a_parquet_file_of_many_symbols_is_counted_by_its_column(capsys, tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns = {name: [1.0] * 5 for name in ("open", "high", "low", "close", "volume")}
    days = [datetime(2026, 1, day, tzinfo=timezone.utc) for day in range(1, 6)]
    pq.write_table(
        pa.table({"timestamp": days, "symbol": ["A", "A", "A", "B", "B"], **columns}),
        tmp_path / "STOCKS_1d.parquet",
    )
    assert main(["plan", "--data", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["data"]["bars"] == {"A": 3, "B": 2}


def test_it_loads_no_torch_no_boto3_and_asks_no_network():
    code = (
        "import socket, sys\n"
        "socket.socket = None\n"
        "from trainer.cli.main import main\n"
        f"assert main({NUMBERS!r}) == 0\n"
        "heavy = {'torch', 'boto3', 'botocore', 'pandas', 'numpy', 'pyarrow', 'moto'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_csv_has_a_line_for_each_machine_and_market(capsys):
    document = planned(capsys)
    assert main([*NUMBERS, "--csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    ways = document["pay"]["ways"]
    assert len(rows) == len(document["candidates"]) + len(document["outside"]) + len(ways)
    assert [row["way"] for row in rows if row["way"]] == [way["way"] for way in ways]
    assert float(rows[-1]["weekly"]) == ways[-1]["weekly"]
    first = document["candidates"][0]
    assert rows[0]["instance_type"] == first["instance_type"]
    assert float(rows[0]["dollars_p50"]) == first["dollars"]["p50"]
    assert {row["seller"] for row in rows} == {"AWS", "RunPod", "Lambda", "Vast", ""}


def test_csv_and_json_name_one_source_of_a_time(capsys, monkeypatch):
    took = Calibrated(boot=100.0, stage=1.0, visits_per_second=50_000.0, upload=30.0, runs=3)
    monkeypatch.setattr("trainer.launch.work.known_calibration", lambda *_, **__: {"g6.xlarge": took})
    types = ("--instance", "g6.xlarge", "--instance", "g5.xlarge", "--on-demand")
    assert [one["source"] for one in planned(capsys, *types)["candidates"]] == ["measured here", "formula"]
    assert main([*NUMBERS, *types, "--csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["source"] for row in rows[:2]] == ["measured here", "formula"]


def test_a_desk_has_the_price_that_its_owner_names(capsys):
    document = planned(capsys, "--desk", "rtx_4090=0.12")
    (desk,) = (line for line in document["outside"] if line["seller"] == "desk")
    assert (desk["price_usd_per_hour"], desk["seconds"]["boot"]) == (0.12, 0.0)
    document = planned(capsys, "--desk", "rtx_4090=watts:450,kwh:0,price:1900,years:3")
    (free,) = (line for line in document["outside"] if line["seller"] == "desk")
    assert (free["dollars"]["p50"], free["refused"]) == (0, "")  # by the sun
    assert "your rtx_4090" in {way["way"] for way in document["pay"]["ways"]}
    for text in ("rtx_4090", "rtx_4090=-1", "rtx_4090=nan"):
        assert "has no price" in refused(capsys, *NUMBERS[1:], "--desk", text)[1]


def test_every_way_to_pay_by_hand(capsys):
    """A g5.xlarge on demand, on spot, reserved, by SageMaker, and a machine that was bought."""
    own = "rtx_4090=watts:450,kwh:0.2,price:1800,years:3"
    document = planned(capsys, "--instance", "g5.xlarge", "--objective", "cost", "--desk", own)
    pay, ways = document["pay"], {way["way"]: way for way in document["pay"]["ways"]}
    (on_demand,) = (one for one in document["candidates"] if one["market"] == "on_demand")
    (desk,) = (one for one in document["outside"] if one["seller"] == "desk")
    hours = sum(on_demand["seconds"][phase] for phase in ("boot", "stage", "train", "upload")) / 3600
    assert pay["run_hours"] == pytest.approx(hours, rel=1e-3)

    cloud = ways["on demand"]
    assert cloud["once"] == pytest.approx(hours * 1.006, rel=1e-3)
    assert cloud["weekly"] == pytest.approx(hours * 1.006 * 365 / 7 / 12, rel=1e-3)
    assert cloud["daily"] == pytest.approx(hours * 1.006 * 365 / 12, rel=1e-3)
    assert cloud["always_on"] == pytest.approx(730 * 1.006)
    reserved = ways["reserved, 1 year, no upfront"]
    assert reserved["weekly"] == reserved["daily"] == reserved["always_on"] == pytest.approx(730 * 0.63378)
    assert reserved["once"] == pytest.approx(12 * 730 * 0.63378)  # the whole term
    assert ways["SageMaker"]["once"] == pytest.approx(hours * 1.41, rel=1e-3)
    mine = ways["your rtx_4090"]
    power = desk["seconds"]["p50"] / 3600 * 0.45 * 0.2
    assert mine["once"] == pytest.approx(1800 + power, rel=1e-4)
    assert mine["daily"] == pytest.approx(50 + power * 365 / 12, rel=1e-3)
    assert mine["always_on"] == pytest.approx(50 + 730 * 0.09)

    spot = next(one for one in document["candidates"] if one["market"] == "spot")
    runs = 50 / (spot["dollars"]["p50"] - power)  # that a machine of $50 a month makes good
    assert f"Cheapest: spot; from {runs * hours:,.0f} h a month on" in pay["sentences"][0]
    assert pay["missing"] == ["1 way without a dated price: savings plans"]


@pytest.mark.parametrize(
    "numbers", ["watts:450", "watts:450,kwh:x,price:1,years:3", "watts:0,kwh:0,price:1,years:3"]
)
def test_a_bought_desk_needs_all_its_numbers(capsys, numbers):
    assert (
        "does not say what the machine costs"
        in refused(capsys, *NUMBERS[1:], "--desk", f"rtx_4090={numbers}")[1]
    )


def test_a_script_has_cpu_types_and_prices_and_no_times(capsys, tmp_path):
    (tmp_path / "train.py").write_text("print('hello')\n")
    words = ["plan", "--script", str(tmp_path / "train.py"), "--max-duration", "2h"]
    assert main([*words, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    rows = {line["instance_type"]: line for line in document["candidates"]}
    assert rows["m7i.large"]["price_usd_per_hour"] == 0.1008 and rows["m7i.large"]["gpus"] == 0
    assert rows["g6.xlarge"]["seconds"] is None and document["choice"] is None
    assert {line["market"] for line in document["candidates"]} == {"on_demand"}  # it keeps no checkpoints
    assert main(words) == 0
    assert "No time is known, so none is recommended. Stopped after 2h" in capsys.readouterr().out
    assert main([*words, "--instance", "m7i.large", "--json"]) == 0
    (alone,) = json.loads(capsys.readouterr().out)["candidates"]
    assert (alone["instance_type"], alone["price_usd_per_hour"]) == ("m7i.large", 0.1008)


def test_how_many_gpus_and_spot_or_not_are_answered(capsys):
    """The question of the report of 20 and 500 coins."""

    def why(*words: str) -> tuple[dict[str, Any], str]:
        assert main(["plan", "--bars", "500000", *words, "--json"]) == 0
        choice = json.loads(capsys.readouterr().out)["choice"]
        return choice["recommended"], "; ".join(choice["why"])

    taken, of_20 = why("--symbols", "20", "--objective", "cost")
    assert taken == {"instance_type": "g4dn.xlarge", "market": "spot"}
    assert "1 GPU: 4 GPUs would take" in of_20 and "spot: it saves" in of_20
    taken, of_500 = why("--symbols", "500", "--deadline", "3h")
    assert taken["instance_type"] == "g5.48xlarge" and "8 GPUs: 4 GPUs would take" in of_500
    taken, fastest = why("--symbols", "20", "--objective", "time")
    assert taken["market"] == "on_demand"
    assert "on-demand: spot is out, its spot price is not in the list" in fastest


def test_a_number_of_gpus_that_was_not_weighed_is_still_sold(capsys):
    types = ("--instance", "g7e.2xlarge", "--instance", "g7e.24xlarge", "--on-demand")
    why = "; ".join(planned(capsys, *types)["choice"]["why"])
    assert "1 GPU: 4 GPUs would take" in why and why.count("(no type has 3 of them)") == 1  # g7e.12xlarge: 2


def test_a_rate_that_another_chip_of_the_kind_gave_says_so(capsys):
    words = ["--instance", "p5en.48xlarge", "--instance", "g6e.xlarge"]
    tcn = {
        one["instance_type"]: one["source"]
        for one in planned(capsys, *words, "--set", "model.name=tcn")["candidates"]
    }
    assert tcn == {"p5en.48xlarge": "measured elsewhere", "g6e.xlarge": "formula"}
    lstm = planned(capsys, *words)["candidates"]
    assert {one["source"] for one in lstm} == {"formula"}  # its rates are careful estimates on every chip


# Bad inputs: one clear line each.


def test_nothing_to_plan_for_says_what_to_give(capsys):
    code, words = refused(capsys)
    assert code == 2 and "--symbols 20 --bars 500000" in words


@pytest.mark.parametrize("count", ["9" * 5000, "1000001"])
def test_too_many_symbols_are_refused(capsys, count):
    code, words = refused(capsys, "--symbols", count, "--bars", "10")
    assert code == 2 and "1,000,000" in words and len(words) < 200


def test_more_symbols_than_the_data_has_are_refused(capsys, tmp_path):
    hourly(tmp_path, "AAA", "BBB")
    code, words = refused(capsys, "--data", str(tmp_path), "--symbols", "3")
    assert code == 2 and f"--symbols 3, but {tmp_path} has 2" in words
    words = ("--symbols", "1", "--set", "data.exclude=AAA", "--json")
    assert main(["plan", "--data", str(tmp_path), *words]) == 0
    assert json.loads(capsys.readouterr().out)["data"]["bars"] == {"BBB": 672}


def test_a_job_that_excludes_all_symbols_is_refused(capsys, tmp_path):
    hourly(tmp_path, "AAA", "BBB")
    code, words = refused(capsys, "--data", str(tmp_path), "--set", "data.exclude=AAA,BBB")
    assert code == 2 and "data.exclude" in words


@pytest.mark.parametrize("bars", ["0", "-5", "2000000000"])
def test_bars_outside_their_bounds_are_refused(capsys, bars):
    assert refused(capsys, "--bars", bars)[0] == 2


def test_a_budget_below_the_minimum_names_the_cheapest(capsys):
    code, words = refused(capsys, *NUMBERS[1:], "--budget", "0.01")
    assert code == 104 and "a budget of $0.01 is too small" in words and "g4dn.xlarge" in words


def test_a_duration_of_seconds_is_within_a_plans_cap(capsys):
    document = planned(capsys, "--max-duration", "2730s")  # 45 minutes and a half
    assert document["max_duration_seconds"] == 2730


def test_its_image_line_is_that_of_a_new_stack():
    text = (Path(__file__).resolve().parents[4] / "Pulumi.yaml").read_text(encoding="utf-8")
    assert f"default: {offline.IMAGE_LINE}\n" in text


def test_agents_are_planned_with_and_without_gpus(capsys):
    agents = ("--set", "target.name=position", "--set", "model.name=mlp")
    document = planned(capsys, "--symbols", "20", "--bars", "50000", *agents)
    rows = {(one["instance_type"], one["market"]): one for one in document["candidates"]}
    of_cores = [rows[f"c7i.{size}", "on_demand"]["seconds"]["train"] for size in ("2xlarge", "4xlarge")]
    assert of_cores[0] == pytest.approx(of_cores[1] * 5 / 3, rel=0.01)  # 20 agents on 4 cores, and on 8
    assert any("worth" in why or why.startswith("a GPU: ") for why in document["choice"]["why"])
    assert "its GPUs compute" in rows["p5.4xlarge", "on_demand"]["note"]


# With a stack.


def test_with_a_stack_offers_and_prices_are_the_accounts(applied, capsys, monkeypatch):
    """Against the embedded AWS: its zones, spot prices and root disk; its month's budget is warned of."""

    def with_budget(access, *, stack):
        return replace(read_stack(access, stack=stack), account_budget=1)

    monkeypatch.setattr("trainer.cli.verbs.plan.own_access", lambda: applied)
    monkeypatch.setattr("trainer.aws.stack.read_stack", with_budget)
    types = ("--instance", "g6.xlarge", "--instance", "g5.48xlarge", "--instance", "p5e.48xlarge")
    document = planned(capsys, "--stack", "dev", *types)
    rows = {(one["instance_type"], one["market"]): one for one in document["candidates"]}
    g6 = rows["g6.xlarge", "on_demand"]
    assert len(g6["zones"]) > 1 and g6["price_usd_per_hour"] > 0.8048  # with the root disk
    assert "for the root disk" in document["prices_are"]
    assert 0 < rows["g6.xlarge", "spot"]["price_usd_per_hour"] < g6["price_usd_per_hour"]
    assert rows["p5e.48xlarge", "on_demand"]["refused"].startswith("not offered in")
    assert [note for note in document["notes"] if "account_budget, $1.00" in note]
    unpriced = [note for note in document["notes"] if note.startswith("AWS does not tell the prices of")]
    assert not [note for note in document["notes"] if "typical spot prices" in note]  # AWS was asked
    assert len(unpriced) == 2  # the embedded AWS sells neither reservations nor savings plans
    assert {way["way"] for way in document["pay"]["ways"]} >= {"on demand", "spot"}
    code, words = refused(capsys, *NUMBERS[1:], "--stack", "nobody")
    assert code == 103 and "nobody" in words
