from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from trainer.cli.main import main

H100 = "NVIDIA H100 80GB HBM3, 81559, 81079, 9.0, GPU-1, Disabled"
TAKEN = "NVIDIA H100 80GB HBM3, 81559, 20000, 9.0, GPU-1, Disabled"


@pytest.fixture
def gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with two H100, one of them partly taken."""
    stub = tmp_path / "nvidia-smi"
    stub.write_text(f"#!/bin/sh\necho '{H100}'\necho '{TAKEN}'\n")
    stub.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.mark.parametrize("words", [["profiles"], ["profiles", "list"]])
def test_profiles_are_listed_and_the_one_in_use_is_marked(words, gpus, capsys):
    assert main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines if line.startswith("*  ")] == ["h100"]
    assert (
        "* holds here: h100, this is NVIDIA H100 80GB HBM3 with 79.6 GiB, 19.5 GiB of it free; 19.5 GiB"
        " to use" in lines
    )
    assert all(f"   {name} " in "\n".join(lines) for name in ("cpu", "t4", "rtx_4090", "b300"))


@pytest.mark.parametrize("words", [["--json"], ["--json", "list"], ["list", "--json"]])
def test_json_has_the_gpus_and_the_source_of_each_figure(words, gpus, capsys, monkeypatch):
    monkeypatch.setenv("GPU_PROFILE", "l40s")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert main(["profiles", *words]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["here"]["profile"], document["here"]["why"]) == ("l40s", "named by $GPU_PROFILE")
    assert len(document["here"]["gpus"]) == 1
    (l4,) = [profile for profile in document["profiles"] if profile["name"] == "l4"]
    assert l4["figures"]["models_per_gpu"]["basis"] == "estimate"
    assert l4["bf16"] is True and l4["peak_source"]


@pytest.mark.parametrize(
    ("wish", "said"), [("h200", "h200 is larger than the chip"), ("h2", "unknown GPU profile 'h2'")]
)
def test_a_profile_that_cannot_apply_is_one_line_below_the_list(gpus, capsys, monkeypatch, wish, said):
    monkeypatch.setenv("GPU_PROFILE", wish)
    assert main(["profiles"]) == 2
    printed = capsys.readouterr()
    (line,) = printed.err.splitlines()
    assert line.startswith("error: ") and said in line
    assert "\nh100 " in printed.out and "holds here" not in printed.out
    assert main(["profiles", "--json"]) == 2
    assert said in json.loads(capsys.readouterr().out)["error"]["what"]


def test_a_job_is_shown_for_each_profile_hourly_and_daily(capsys, tmp_path):
    job = tmp_path / "job.toml"
    job.write_text('[data]\nsymbols = ["A", "B", "C"]\n[model]\nname = "lstm"\n[train]\nbatch = 512\n')
    assert main(["profiles", "--job", str(job), "--json"]) == 0
    rows = {row["profile"]: row for row in json.loads(capsys.readouterr().out)["profiles"]}
    assert rows.keys() >= {"rtx_3090", "rtx_4090", "a100_80gb", "h100_94gb"} and "cpu" not in rows
    hourly, daily = rows["rtx_4090"]["1h"], rows["rtx_4090"]["1d"]
    assert (hourly["batch"], hourly["models"], hourly["source"]) == (512, 3, "formula")
    assert hourly["seconds"] > 20 * daily["seconds"]  # 24 bars a day, less what a window sees
    # 3 symbols of 61,320 hours, 70 % less what a window sees; 15 % validate at 0.35; 15 epochs at 230,000 a second
    visits = 3 * 15 * (int(61_320 * 0.7) - 60 + 0.35 * int(61_320 * 0.15))
    assert hourly["seconds"] == pytest.approx(visits / 230_000, rel=0.01)
    assert main(["profiles", "list", "--job", str(job)]) == 0
    text = capsys.readouterr().out
    assert "batch 1h" in text and "time 1d" in text and "the job's 512" in text
    assert "of 3 symbols with seven years of bars on it" in text


def test_a_job_of_the_last_bars_says_so(capsys, tmp_path):
    job = tmp_path / "job.toml"
    job.write_text('[data]\nbars = 20000\n[model]\nname = "lstm"\n')
    assert main(["profiles", "--job", str(job)]) == 0
    assert "of 1 symbol with the last 20,000 of seven years of bars on it" in capsys.readouterr().out


def test_a_model_too_large_for_a_profile_says_so(capsys, tmp_path):
    job = tmp_path / "job.toml"
    job.write_text('[model]\nname = "transformer"\npreset = "large"\nwidth = 8192\nblocks = 64\n')
    assert main(["profiles", "--job", str(job)]) == 0
    assert "does not fit" in capsys.readouterr().out
