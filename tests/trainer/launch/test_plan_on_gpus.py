"""Plans of large models, and of models on several GPUs: their tables, notes and refusals."""

import re
from datetime import timedelta

import pytest

from tests.jobs import job_of
from tests.trainer.launch.test_plan import plan
from trainer.aws.place import REHEARSAL
from trainer.base.errors import BudgetError, ConfigError
from trainer.cli.views.drawing import drawn
from trainer.cli.views.plan import plan_view
from trainer.launch.inputs import ChosenCandles
from trainer.runs.deadline import TimeLimit


def test_gpus_that_no_model_would_use_are_named():
    (one_model,) = plan(job_of(instance=("p4d.24xlarge",))).candidates
    assert one_model.note == "7 of 8 GPUs idle"
    (busy,) = plan(job_of(instance=("p4d.24xlarge",), seeds=8)).candidates
    assert busy.note == ""


def test_an_untried_model_of_the_users_is_not_estimated():
    job = job_of(model="my_net.py:MyNet", instance=("g6.xlarge",), budget=0.01)
    made = plan(job, bars={"BTC-USD": 10_000})
    candles = ChosenCandles(timeframe="1m", bars={"BTC-USD": 10_000}, synthetic=False)
    text = drawn(plan_view(made, job, candles))
    assert "1 model: MyNet → direction" in text and text.count("not estimated ") == 1
    assert "Times: not estimated: the machine tries your own model first." in text
    free = plan(job_of(model="my_net.py:MyNet", instance=("g6.xlarge",)))
    assert free.hard_stop == TimeLimit(duration=timedelta(hours=12), cause="default_duration")
    (candidate,) = made.to_dict()["candidates"]
    assert (
        candidate["seconds"] is candidate["dollars"] is None and candidate["rate"]["basis"] == "not estimated"
    )


SEVERAL = {"model": "tcn", "distributed": "always", "batch": 2, "instance": ("g4dn.12xlarge", "p4d.24xlarge")}


def test_a_model_on_all_gpus_has_a_table_of_gpus():
    made = plan(job_of(**SEVERAL))
    rows = {(row.machine.gpu_model, row.devices): row for row in made.gpus}
    assert {devices for _, devices in rows} == {1, 2, 4, 8}
    assert rows["NVIDIA T4", 1].machine.name == "g4dn.xlarge"  # the cheapest of its kind
    assert rows["NVIDIA T4", 4].is_pointless and rows["NVIDIA T4", 4].speedup < 2
    large = {
        (row.machine.gpu_model, row.devices): row for row in plan(job_of(**{**SEVERAL, "batch": 64})).gpus
    }
    assert not large["NVIDIA A100 40GB", 8].is_pointless and large["NVIDIA A100 40GB", 8].speedup > 4
    candidate = next(one for one in made.candidates if one.machine.name == "g4dn.12xlarge")
    assert candidate.note.endswith("times as fast as one by the scaling law: not worthwhile over PCIe")
    assert rows["NVIDIA T4", 4].seconds_p50 == candidate.seconds_p50
    assert {row["instance_type"] for row in made.to_dict()["gpus"]} == {row.machine.name for row in made.gpus}
    candles = ChosenCandles(timeframe="1m", bars={"BTC-USD": 3_700_000}, synthetic=False)
    text = drawn(plan_view(made, job_of(**SEVERAL), candles))
    assert "one model on" in text and "Several GPUs: by law" in text and "an estimate until measured" in text
    assert "8×T4" in text[text.index("Not worthwhile for this model and batch") :]


def test_models_of_single_gpus_have_the_same_table():
    three = dict.fromkeys(("A", "B", "C"), 3_700_000)
    rows = {(row.machine.gpu_model, row.devices): row for row in plan(job_of(), bars=three).gpus}
    one, four, eight = (rows["NVIDIA T4", count] for count in (1, 4, 8))
    assert (one.speedup, four.speedup, eight.speedup) == (1.0, 3.0, 3.0)  # by the number of models
    assert eight.is_pointless and not four.is_pointless and four.placement is None
    boot = four.machine.boot.expected_seconds
    assert four.seconds_p50 - boot < (one.seconds_p50 - one.machine.boot.expected_seconds) / 2.5


def test_a_rehearsal_has_the_table_of_aws():
    assert plan(job_of(**SEVERAL), place=REHEARSAL).gpus == plan(job_of(**SEVERAL)).gpus != ()
    own = job_of(**{**SEVERAL, "model": "my_net.py:MyNet"})
    assert plan(own).gpus == ()


def test_the_large_transformer_on_a_t4_has_a_line_about_its_fit():
    large = {"model": "transformer", "preset": "large", "distributed": "always", "instance": ("g4dn.xlarge",)}
    fits = plan(job_of(**large, lookback=64, batch=2048), bars={"A": 100_000}).first.note
    assert re.fullmatch(
        r"the model fits its one GPU, slices of [\d,]+ \([\d.]+ GiB by the memory formula\)", fits
    )
    crowd = {"A": 60_000_000}  # whose rows fill the GPU
    with pytest.raises(
        ConfigError, match=r"a model of 151.\d M weights does not fit on one NVIDIA T4 \(it needs"
    ):
        plan(job_of(**large), bars=crowd)


def test_a_model_too_large_for_a_type_is_one_line_that_says_so():
    large = {**SEVERAL, "width": 8192, "instance": ("g4dn.xlarge", "p5.48xlarge")}
    refused = next(
        one.refused for one in plan(job_of(**large)).candidates if one.machine.name == "g4dn.xlarge"
    )
    assert re.match(
        r"a model of [\d.]+ M weights does not fit on one NVIDIA T4 \(it needs [\d.]+ of 13.7 GiB", refused
    )
    with pytest.raises(ConfigError, match="does not fit on one NVIDIA T4"):
        plan(job_of(**{**large, "instance": ("g4dn.xlarge",)}))


LARGE = {
    "model": "transformer",
    "preset": "large",
    "timeframe": "1d",
    "target": "return",
    "volatility_bars": 60,
    "batch": 2048,
}
PANEL = {**LARGE, "panel": True, "calendar": "XNYS", "epochs": 15, "lookback": 256}
STOCKS = {f"S{number:03d}": 1_700 for number in range(496)}


def test_a_large_model_in_slices_names_faster_types_if_too_slow():
    t4 = {**PANEL, "instance": ("g4dn.xlarge",)}
    fits = "the model fits its one GPU, slices of 256 (12.3 GiB by the memory formula)"
    made = plan(job_of(**t4, max_duration="1d"), bars=STOCKS, cap=timedelta(days=1))
    assert (made.first.note, made.first.refused) == (fits, "") and 7 < made.first.seconds_p50 / 3600 < 8
    with pytest.raises(BudgetError) as late:
        plan(job_of(**t4, max_duration="2h"), bars=STOCKS)
    why = f"the fastest, g4dn.xlarge, is estimated at 7.7 h: {fits}"
    line = f"no plan ends before its hard stop of 2.0 h, set by machine.max_duration ({why})"
    assert str(late.value).startswith(
        f"{line}. Raise --max-duration, or train less. Or take g6e.xlarge (1.4 h, $"
    )
    with pytest.raises(
        BudgetError, match=r"is estimated at \$4.039: the model fits .*Or take g6e.xlarge \(1.4 h, \$2.64\)"
    ):
        plan(job_of(**t4, budget=3), bars=STOCKS)


def test_a_model_that_fits_no_slice_is_refused_with_types():
    slices = job_of(
        **{**PANEL, "lookback": 1024, "micro_batch": 512, "epochs": 1, "instance": ("g4dn.xlarge",)}
    )
    needs = (
        "a model of 151.6 M weights does not fit on one NVIDIA T4 (it needs 16.5 of 13.7 GiB by the memory"
        " formula"
    )
    with pytest.raises(ConfigError) as refused:
        plan(slices, bars=STOCKS)
    assert needs in str(refused.value) and "Or take g6.xlarge (" in str(refused.value)
    alone = job_of(
        **{**LARGE, "lookback": 256, "micro_batch": 2048, "instance": ("g4dn.xlarge", "g6e.xlarge")}
    )
    first, second = plan(alone, bars={"A": 100_000}).candidates
    assert (
        first.refused.startswith("one model of 100,000 bars needs 15.8 GiB, t4 has room for 13.7 GiB")
        and not second.refused
    )


def test_what_aws_would_refuse_is_a_note_of_a_rehearsal():
    short = job_of(instance=("g6.xlarge",), max_duration="5m")
    with pytest.raises(BudgetError):
        plan(short)
    assert re.fullmatch(
        r"AWS would skip it: needs \d+ min, stopped after 5 min", plan(short, place=REHEARSAL).first.note
    )
    large = job_of(**{**SEVERAL, "width": 8192, "instance": ("g4dn.xlarge",)})
    assert "AWS would skip it: a model of" in plan(large, place=REHEARSAL).first.note


def test_a_model_that_counts_its_flops_is_bound_by_the_peak():
    def seconds(name: str) -> float:
        job = job_of(**{**PANEL, "instance": (name,), "distributed": "always", "max_duration": "2d"})
        return plan(job, bars=STOCKS, cap=timedelta(days=2)).first.time.phases.training

    # B200's peak is 2.27 times the H100's; over their links the rest of the law is nearly the same.
    assert seconds("p5.48xlarge") / seconds("p6-b200.48xlarge") == pytest.approx(2250 / 989.4, rel=0.05)
