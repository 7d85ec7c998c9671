from __future__ import annotations

from itertools import product

import pytest

from tests.jobs import with_settings
from tests.trainer.job.test_script import script_job
from trainer.base.errors import UsageError
from trainer.base.symbols import path_flaw
from trainer.job.pieces import pieces_of
from trainer.job.reading import job_from, load_job, parse_job
from trainer.job.script_values import MOST_NAME_BYTES, combinations, read_rows


def over(value, **script):
    return script_job(over=value, **script)


def test_each_combination_of_lists_is_a_piece():
    values = {"symbol": ["BTC-USD", "ETH-USD"], "seed": [0, 1, 2]}
    job = over(values, gpus=0.25, command="run --seed $MAYFLY_VALUE_SEED")
    assert list(job.script.combinations) == [
        f"symbol={symbol}_seed={seed}" for symbol, seed in product(*values.values())
    ]
    assert job.script.combinations["symbol=ETH-USD_seed=1"] == {"symbol": "ETH-USD", "seed": "1"}
    pieces = pieces_of(job, (), timeframe="")
    title = "symbol=BTC-USD_seed=0"
    assert (pieces[0].name, pieces[0].title, len(pieces)) == (f"script_mayfly_{title}", title, 6)
    assert job_from(job.to_dict()) == job and with_settings(job, budget=2.0).script == job.script


def test_names_of_values_are_safe_unique_paths():
    values = ["a/b", "a b", "../x", ".bashrc", "a", "A", "x" * 150, "é", "~", "-rf", "{a}", "CON_1"]
    made = combinations({"value": values, "side": ["1", "1_1"]})
    assert len({name.casefold() for name in made}) == 2 * len(values)
    for name in made:
        assert path_flaw(name) == ""
        assert "/" not in name
        assert len(name.encode()) <= MOST_NAME_BYTES
        assert name[0] not in "-~."
    assert combinations({"a": ["x_y"], "b": ["z", "w"]}).keys() == {"a=x_y_b=z", "a=x_y_b=w"}
    both = list(combinations([{"a": "x_b=y", "b": "z"}, {"a": "x", "b": "y_b=z"}]))
    assert [name.partition("-")[0] for name in both] == ["a=x_b=y_b=z"] * 2 and both[0] != both[1]


@pytest.mark.parametrize(
    ("value", "line"),
    [
        (dict.fromkeys("ab", list(range(50))), "script.over makes 2,500 combinations (50 x 50; a run takes"),
        ([{"a": 1}] * 2001, "script.over makes 2,001 combinations"),
        ({"a": []}, "script.over.a is [] (it must be a list of values)"),
        ({"a": 1}, "script.over.a is 1"),
        ({"a": [[1]]}, "script.over.a has [1] (a value is a number or 1 to 200 bytes of printable text)"),
        ({"a": ["x\n"]}, "script.over.a has 'x\\n'"),
        ({"a": ["x" * 201]}, "script.over.a has"),
        ({"a": [""]}, "script.over.a has ''"),
        ({"a-b": [1]}, "script.over has a column 'a-b' (it becomes a variable"),
        ({"a": [1], "A": [2]}, "script.over has columns a, A (two make one variable)"),
        ({f"a{n}": [1] for n in range(9)}, "script.over has 9 columns"),
        ({"api_key": [1]}, "script.over makes MAYFLY_VALUE_API_KEY (its name is that of a secret)"),
        ({"a": [1, 1]}, "script.over has {'a': '1'} twice"),
        ([{"a": 1}, {"b": 1}], "row 2 of script.over has b (the first has a)"),
        ([1], "job key 'script.over' is [1] (it must be lists of values or rows)"),
        (7, "job key 'script.over' is 7"),
        ("values.csv", "script.over names the file 'values.csv' (only a launch and a publish read it)"),
    ],
)
def test_malformed_values_are_one_line(value, line):
    with pytest.raises(UsageError) as refused:
        over(value)
    assert line in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        ({"gpus": 1.5}, "job key 'script.gpus' is 1.5 (it must be a share from 0.05 on"),
        ({"gpus": 0.01}, "job key 'script.gpus' is 0.01"),
        ({"gpus": -1}, "job key 'script.gpus' is -1.0"),
        ({"gpus": 0.5, "over": ""}, "script.gpus without script.over (one script gets all GPUs)"),
        (
            {"env": ["CUDA_VISIBLE_DEVICES=0"]},
            "script.env sets CUDA_VISIBLE_DEVICES (each value gets its own",
        ),
        ({"command": "run $MAYFLY_VALUE_SEED"}, "script.command uses $MAYFLY_VALUE_SEED (no such variable)"),
    ],
)
def test_settings_that_contradict_values_are_one_line(keys, line):
    with pytest.raises(UsageError) as refused:
        over(**{"value": keys.pop("over", {"symbol": ["A"]}), **keys})
    assert line in str(refused.value)


def test_a_csv_file_beside_the_job_has_a_row_for_each_piece(tmp_path):
    (tmp_path / "values.csv").write_text("symbol,lr\nA/B, 1e-3\n\nC,0.01\n")
    (tmp_path / "job.toml").write_text(
        '[script]\ncommand = "run $MAYFLY_VALUE_LR"\nover = "values.csv"\n[machine]\nmax_duration = "1h"\n'
    )
    job = parse_job(load_job(tmp_path / "job.toml"), {})
    rows = [{"symbol": "A/B", "lr": "1e-3"}, {"symbol": "C", "lr": "0.01"}]
    assert list(job.script.combinations.values()) == rows
    assert list(job.script.combinations)[1] == "symbol=C_lr=0.01"


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (None, "does not exist (script.over names it)"),
        (b"", "has no values"),
        (b"symbol\n", "has no values"),
        (b"a,b\n1\n", "line 2 of"),
        (b"\na,b\n\n1,2\n\n1\n", "line 6 of"),
        (b'a,b\n"1\n2",3\n1\n', "line 4 of"),
        (b"a,a\n1,2\n", "names a column twice"),
        (b"\xff\xfe", "is not CSV"),
        (b'a\n"x', "is not CSV"),
        (b"a\n" * 600_000, "has more than 1 MiB"),
    ],
)
def test_a_bad_csv_file_is_one_line(tmp_path, content, line):
    path = tmp_path / "values.csv"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError) as refused:
        read_rows(path)
    assert line in str(refused.value) and "\n" not in str(refused.value)
