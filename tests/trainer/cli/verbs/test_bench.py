from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.jobs import sets
from trainer.cli.main import main
from trainer.cli.verbs import bench as verb
from trainer.train.tuning import bench as benching

pytestmark = pytest.mark.slow

TINY = ["--quick", "--device", "cpu", *sets("model.blocks=2", "model.width=4", "model.chunk=16")]


@pytest.fixture(autouse=True)
def in_no_time(monkeypatch: pytest.MonkeyPatch, forked_children: None) -> None:
    monkeypatch.setattr(benching, "QUICK_SECONDS", 0.05)


def test_the_table_says_what_counts_and_what_it_costs(capsys):
    assert main(["profiles", "bench", *TINY, "--price", "2", "--bars", "100000"]) == 0
    out, err = capsys.readouterr()
    header, *lines = out.splitlines()
    assert header.split()[:5] == ["profile", "batch", "(chunks)", "checkpointing", "it/s"]
    assert [line.split()[:3] for line in lines[:4]] == [
        ["cpu", "1", "off"],
        ["cpu", "1", "on"],
        ["cpu", "8", "off"],
        ["cpu", "8", "on"],
    ]
    assert "100 epochs at $2.00 an hour: --price." in lines
    assert lines[-1].startswith("it/s misleads") and "chunks/s, is what counts." in lines[-1]
    assert len(err.splitlines()) == 4


def test_json_has_the_dollars_of_each_row(capsys):
    assert main(["profiles", "bench", "--json", *TINY, "--price", "2", "--bars", "100000"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["profile"] == "cpu" and found["price_usd_per_hour"] == 2
    for row in found["rows"]:
        assert row["epoch_seconds"] == pytest.approx(
            4375 / row["chunks_per_second"]
        )  # 70,000 bars in chunks of 16
        assert row["usd"] == pytest.approx(row["epoch_seconds"] * 100 / 3600 * 2)


@pytest.mark.parametrize(
    ("profile", "price", "instance"),
    [
        ("l4", 0.8048, "a GPU of g6.xlarge"),
        ("a10g", 1.006, "a GPU of g5.xlarge"),
        ("h200", 63.296 / 8, "one of 8 GPUs of p5en.48xlarge"),
    ],
)
def test_a_chip_costs_what_the_cheapest_machine_asks_for_one(profile, price, instance):
    found, whose = verb._price(None, profile, "cuda")
    assert found == pytest.approx(price) and whose.startswith(instance)


def test_a_chip_that_aws_does_not_rent_has_no_price():
    assert verb._price(None, "rtx_4090", "cuda") == (
        0.0,
        "AWS's price for rtx_4090 is not known; set it with --price",
    )
    assert verb._price(None, "cpu", "cpu")[0] == 0.0


@pytest.mark.parametrize(
    "wrong",
    [
        ["--set", "train.batch=4"],
        ["--set", "model.name=lstm"],
        ["--price", "-1"],
        ["--price", "nan"],
        ["--bars", "-5"],
        ["--set", "model.chunk=0"],
    ],
)
def test_bad_input_is_one_line(wrong, capsys):
    assert main(["profiles", "bench", *wrong]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")


def test_bad_input_waits_for_no_torch():
    code = (
        "import sys; from trainer.cli.main import main; main(['profiles', 'bench', '--bars', '-1']); sys.exit('torch' in"
        " sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0 and "error: --bars -1" in done.stderr
