"""Task files of SkyPilot and dstack as jobs: what is carried, what is named, and what no file may do."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from trainer.base.errors import UsageError
from trainer.cli.main import main
from trainer.importing.accelerators import types_with
from trainer.importing.yaml_file import read_yaml
from trainer.job.job import job_from, load_job
from trainer.job.script import CONTRACT, replaced
from trainer.launch.machines import machines_of
from trainer.launch.script_files import script_files

SKYPILOT = """
name: My Finetune
workdir: ./code
num_nodes: 2
resources:
  infra: aws/us-east-1
  accelerators: [A100-80GB:8, H100:8]
  use_spot: true
  image_id: docker:nvcr.io/nvidia/pytorch
  new_key: 1
envs:
  MODEL_SIZE: 13b
  STEPS: 100
  WANDB_API_KEY: null
  NAMED_ONLY: null
secrets:
  HF_HOME: x
file_mounts:
  /data: s3://my-bucket/imdb
  /more: gs://other
  /checkpoints: {source: s3://out, mode: MOUNT}
setup: |
  conda activate vllm
  if [ $? -ne 0 ]; then
    conda create -n vllm python=3.10 -y
  fi
  sudo apt-get install -y ffmpeg
  pip install -r requirements.txt
  git clone https://github.com/x/y
run: |
  torchrun --nproc_per_node=$SKYPILOT_NUM_GPUS_PER_NODE \\
    train.py --size ${MODEL_SIZE}
"""
DSTACK = """
type: task
name: trl-train
python: "3.10"
env: [HF_TOKEN, ACCELERATE_LOG_LEVEL=info]
commands:
  - pip install "peft>=0.10" -q wandb
  - pip install git+https://github.com/huggingface/transformers.git
  - python train.py --lr 2e-4
resources:
  gpu: {name: [L4, A10G], memory: 20GB.., count: 1}
  shm_size: 24GB
max_duration: 2h
spot_policy: auto
"""


def imported(capsys: pytest.CaptureFixture[str], file: Path, text: str, *words: str) -> dict[str, Any]:
    file.write_text(text)
    assert main(["import", str(file), "--json", *words]) == 0
    told = json.loads(capsys.readouterr().out)
    return {**told, "look_at": {note["key"]: note["do"] for note in told["look_at"]}}


@pytest.fixture
def code(tmp_path: Path) -> Path:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("print(1)")
    (tmp_path / "code" / "requirements.txt").write_text("peft==0.1")
    return tmp_path / "code"


def test_a_skypilot_task_becomes_a_job_and_names_what_it_could_not_carry(code, tmp_path, capsys):
    told = imported(capsys, tmp_path / "task.yaml", SKYPILOT)
    job = job_from(load_job(Path(told["job"])))
    assert (job.name, job.script.command, job.script.files) == (
        "my-finetune",
        "bash my-finetune-run.sh",
        (".",),
    )
    assert job.script.env == ("MODEL_SIZE=13b", "STEPS=100") and job.script.secrets == (
        "WANDB_API_KEY",
        "HF_HOME",
    )
    assert (job.script.requirements, job.data.folder) == ("requirements.txt", "s3://my-bucket/imdb")
    assert (job.machine.instance, job.machine.market) == (("p4de.24xlarge", "p5.48xlarge"), "spot")
    assert job.machine.max_duration == "8h" and [machine.num_workers for machine in machines_of(job)] == [
        8,
        8,
    ]
    assert {"my-finetune-run.sh", "train.py", "requirements.txt"} < set(script_files(job.script))
    run = (code / "my-finetune-run.sh").read_text()
    assert "export SKYPILOT_NUM_GPUS_PER_NODE=$MAYFLY_DEVICES" in run and "  :  # conda create -n vllm" in run
    assert run.endswith(
        "torchrun --nproc_per_node=$SKYPILOT_NUM_GPUS_PER_NODE \\\n  train.py --size ${MODEL_SIZE}\n"
    )
    assert "\n:  # pip install -r requirements.txt\ngit clone https://github.com/x/y\n" in run
    assert set(told["look_at"]) == {
        *("num_nodes", "resources.infra", "resources.image_id", "resources.new_key", "max_duration"),
        *("envs.WANDB_API_KEY", "envs.NAMED_ONLY", "secrets.HF_HOME"),
        *("file_mounts./data", "file_mounts./more", "file_mounts./checkpoints"),
        *(
            "setup: conda activate vllm",
            "setup: conda create -n vllm python=3.10 -y",
            "setup: sudo apt-get install -y ffmpeg",
        ),
    }
    assert main(["import", str(tmp_path / "task.yaml")]) == 2
    assert "exists already" in capsys.readouterr().err


def test_a_dstack_task_becomes_a_job_without_a_shell_where_it_needs_none(code, capsys, tmp_path):
    told = imported(capsys, code / ".dstack.yml", DSTACK, "--out", str(tmp_path / "my.toml"))
    job = job_from(load_job(tmp_path / "my.toml"))
    assert (job.name, job.machine.max_duration, job.machine.market) == ("trl-train", "2h", "on_demand")
    assert job.script.command == "python train.py --lr 2e-4" and Path(job.script.root) == code
    assert (code / "my-requirements.txt").read_text() == "peft>=0.10\nwandb\n"
    assert job.script.secrets == ("HF_TOKEN",) and job.script.env == ("ACCELERATE_LOG_LEVEL=info",)
    assert [machine.gpu_model for machine in machines_of(job)] == ["NVIDIA L4", "NVIDIA L4", "NVIDIA A10G"]
    assert set(told["look_at"]) == {
        *("python", "env.HF_TOKEN", "resources.shm_size", "spot_policy"),
        "run: pip install git+https://github.com/huggingface/transformers.git",
    }
    plain = imported(
        capsys,
        code / "plain.dstack.yml",
        "type: task\ncommands: [python train.py --lr 2e-4]\nmax_duration: 3600\n",
    )
    job = job_from(load_job(Path(plain["job"])))
    assert (job.name, job.script.command, job.machine.max_duration) == (
        "plain",
        "python train.py --lr 2e-4",
        "3600s",
    )
    assert plain["look_at"] == {} and plain["files"] == [plain["job"]]


@pytest.mark.parametrize(
    ("names", "count", "gib", "first"),
    [
        (["L4"], (1, 1), 0.0, "g6.xlarge"),
        (["L40S"], (4, 4), 0.0, "g6e.12xlarge"),
        (["A100"], (8, 8), 0.0, "p4d.24xlarge"),
        (["a100-80gb"], (8, 8), 0.0, "p4de.24xlarge"),
        ([], (1, 8), 80.0, "g7e.2xlarge"),
        ([], (1, 1), 0.0, "g4dn.xlarge"),
        (["RTX4090"], (1, 1), 0.0, ""),
    ],
)
def test_types_are_found_by_chip_number_and_memory_the_cheapest_first(names, count, gib, first):
    assert next(iter(types_with(names, least=count[0], most=count[1], gib=gib)), "") == first


BOMB = "a: &a [x, x, x]\n" + "".join(
    f"{new}: &{new} [*{old}, *{old}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (None, "does not exist"),
        (b"", "is not a task (it is empty)"),
        (b"- a\n- b\n", "is not a task (it is not a mapping of keys)"),
        (b"run: a\n---\nrun: b\n", "it holds several documents, such as a pipeline"),
        (b"run: [a\n", "is not YAML"),
        (b"run: \xff", "is not YAML"),
        (
            b"run: !!python/object/apply:os.system ['touch owned']\n",
            "is not YAML (could not determine a constructor",
        ),
        (b"run: 2026-99-99\n", "is not YAML"),
        (b'run: "\\uD800"\n', "is not YAML"),
        (BOMB.encode(), "line 2 of"),
        (b"run: " + b"[" * 5_000, "is too large (it has more than 20,000 entries, or 20 levels)"),
        (b"run: [" + b"1," * 30_000 + b"1]", "is too large"),
        (b"#" * 300_000, "has more than 256 KiB"),
    ],
)
def test_a_file_that_is_no_yaml_or_a_bomb_is_one_line(tmp_path, monkeypatch, content, line):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "task.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError) as refused:
        read_yaml(path)
    assert line in str(refused.value) and "\n" not in str(refused.value) and not (tmp_path / "owned").exists()


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("service: {}\nrun: a\n", "is a service"),
        ("type: dev-environment\nide: vscode\n", "is not a task of dstack (it is of type 'dev-environment')"),
        ("name: x\n", "is not a known task"),
        ("run: [a]\n", "run of the task is ['a'] (it must be text)"),
        ("run: a\nresources: x\n", "resources of the task is 'x' (it must be a mapping)"),
        ("type: task\ncommands: a\n", "commands of the task is 'a'"),
        ("run: a\nworkdir: gone\n", "gone is not a folder"),
        (
            "run: a\nworkdir: ~nobody-here/x\n",
            "workdir of the task is '~nobody-here/x' (this machine has no such user)",
        ),
        (
            "run: a\nfile_mounts: {/data: ~nobody-here/x}\n",
            "file_mounts./data of the task is '~nobody-here/x'",
        ),
        ("workdir: .\nresources: {}\n", "the task runs nothing"),
    ],
)
def test_a_task_that_is_none_is_one_line_and_writes_nothing(tmp_path, capsys, text, line):
    (tmp_path / "task.yaml").write_text(text)
    assert main(["import", str(tmp_path / "task.yaml")]) == 2
    error = capsys.readouterr().err
    assert line in error and error.count("\n") == 1
    assert [place.name for place in tmp_path.iterdir()] == ["task.yaml"]


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("type: task\ncommands: [python a.py]\ninstance_types: 5\n", "instance_types"),
        ("type: task\ncommands: [python a.py]\nresources: {gpu: {count: .inf}}\n", "resources.gpu"),
        ("type: task\ncommands: [python a.py]\nresources: {gpu: {count: .nan}}\n", "resources.gpu"),
        (f"run: python a.py\nresources: {{accelerators: 'A100:{'9' * 400}'}}\n", "resources.accelerators"),
    ],
)
def test_a_number_of_gpus_that_is_none_is_named(tmp_path, capsys, text, key):
    (tmp_path / "task.yaml").write_text(text)
    assert main(["import", str(tmp_path / "task.yaml")]) == 0
    assert f"look at {key}: no" in capsys.readouterr().err


def test_the_jobs_that_the_page_shows_are_jobs_and_it_names_what_is_taken():
    page = (Path(__file__).resolve().parents[3] / "docs" / "coming-from.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    jobs = [job_from(tomllib.loads(block)) for block in blocks]
    assert [job.script.words[0] for job in jobs] == ["env", "torchrun"]
    assert replaced(jobs[0].script.words[1], dict.fromkeys(CONTRACT, "/x")) == "SM_MODEL_DIR=/x"
    for key in (
        "workdir",
        "envs",
        "accelerators",
        "instance_type",
        "any_of",
        "use_spot",
        "file_mounts",
        "spot_policy",
    ):
        assert key in page
