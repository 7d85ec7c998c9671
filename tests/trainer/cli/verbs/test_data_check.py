"""`mayfly data check` prints one table, or JSON, repairs into a new folder, and draws a page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainer.cli.main import main

HEADER = "time,open,high,low,close,volume"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of AAA, with a bar twice, and BBB."""
    data = tmp_path / "data"
    data.mkdir()
    rows = [f"{1_609_459_200 + 60 * row},1,2,0.5,1,3" for row in range(60)]
    (data / "AAA_1m.csv").write_text("\n".join([HEADER, *rows[:9], rows[8], *rows[9:]]))
    (data / "BBB_1m.csv").write_text("\n".join([HEADER, *rows]))
    return data


def test_a_check_prints_a_table_and_says_what_training_would_do(folder: Path, capsys):
    assert main(["data", "check", str(folder)]) == 2
    out = capsys.readouterr().out
    assert "AAA_1m.csv has the same bar twice" in out and "drops them" in out
    assert "2 symbols, 120 bars: training refuses AAA" in out
    assert main(["data", "check", str(folder), "--set", "data.exclude=AAA"]) == 0
    assert "1 symbol, 60 bars: training reads all of them" in capsys.readouterr().out


def test_a_check_repairs_draws_and_speaks_json(folder: Path, tmp_path: Path, capsys):
    fixed, page = tmp_path / "fixed", tmp_path / "page.html"
    words = ["data", "check", str(folder), "--fix", str(fixed), "--html", str(page), "--json"]
    assert main(words) == 0  # what was written can be trained on
    told = json.loads(capsys.readouterr().out)
    assert [one["training"] for one in told["symbols"]] == ["refused", "trained on"]
    assert [(one["file"], one["duplicates"]) for one in told["fix"]["files"]] == [
        ("AAA_1m.csv", 1),
        ("BBB_1m.csv", 0),
    ]
    assert page.read_text().startswith("<!doctype html>")
    assert main(["data", "check", str(fixed)]) == 0
    capsys.readouterr()
    assert main(words) == 2  # never over anything
    assert "is there already" in capsys.readouterr().out


def test_a_repair_inside_its_source_is_refused(folder: Path, capsys):
    assert main(["data", "check", str(folder), "--fix", str(folder / "fixed")]) == 2
    assert "is inside" in capsys.readouterr().err


def test_a_page_in_place_of_a_folder_is_refused_before_the_check(folder: Path, capsys):
    assert main(["data", "check", str(folder), "--html", str(folder)]) == 2
    assert f"--html {folder} is a folder" in capsys.readouterr().err


def test_a_page_in_place_of_what_is_read_is_refused(folder: Path, tmp_path: Path, capsys):
    job = tmp_path / "job.toml"
    job.write_text("[data]\n")
    inputs = {path: path.read_bytes() for path in (*folder.iterdir(), job)}
    for path in inputs:
        assert main(["data", "check", str(folder), "--job", str(job), "--html", str(path)]) == 2
        assert f"--html {path} would replace" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in inputs} == inputs


def test_a_check_reads_the_columns_that_a_job_tells(folder: Path, tmp_path: Path, capsys):
    job = tmp_path / "job.toml"
    job.write_text('[data]\ncolumns = ["volume=volume:k"]\ncalendar = "events"\n')
    assert main(["data", "check", str(folder / "BBB_1m.csv"), "--job", str(job), "--json"]) == 0
    (one,) = json.loads(capsys.readouterr().out)["symbols"]
    assert one["calendar"] == "events"
