from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from trainer.cli.main import main

H100 = "NVIDIA H100 80GB HBM3, 81559, 81079, 9.0"
TAKEN = "NVIDIA H100 80GB HBM3, 81559, 20000, 9.0"


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
