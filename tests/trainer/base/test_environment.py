"""The environment, read at each call."""

from __future__ import annotations

import os
import sys
from datetime import datetime, timezone
from pathlib import Path

import pytest

from trainer.base import environment

ROOT = Path(__file__).resolve().parents[3]


def test_values_are_read_when_they_are_asked_for(monkeypatch, tmp_path):
    config = tmp_path / ".config" / "mayfly"
    readers = {
        "MAYFLY_HOME": (environment.rehearsal_home, Path.cwd() / "said", tmp_path / ".local/share/mayfly"),
        "MAYFLY_PROFILES": (environment.profiles_file, Path("said"), config / "gpu_profiles.toml"),
        "MAYFLY_LOCAL": (environment.local_folder, Path("said"), None),
        "GPU_PROFILE": (environment.gpu_profile, "said", ""),
        "CUDA_VISIBLE_DEVICES": (environment.visible_gpus, "said", None),
        "NO_COLOR": (environment.colours_refused, True, False),
    }
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    for name, (read, said, default) in readers.items():
        monkeypatch.setenv(name, "said")
        assert read() == said
        monkeypatch.delenv(name)
        assert read() == default


def test_state_is_in_the_platforms_data_folder(monkeypatch, tmp_path):
    monkeypatch.delenv("MAYFLY_HOME", raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    assert environment.rehearsal_home() == Path("/data/mayfly")
    monkeypatch.setenv("XDG_DATA_HOME", "relative")  # which the convention tells to ignore
    assert environment.rehearsal_home() == tmp_path / ".local/share/mayfly"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert environment.rehearsal_home() == tmp_path / "Library/Application Support/mayfly"


def test_a_relative_folder_of_caches_is_ignored(monkeypatch, tmp_path):
    """Programs in it are replayed: they are never those of the folder in which a command happens to run."""
    monkeypatch.delenv("MAYFLY_PROGRAMS", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert environment.rehearsal_environment().programs == tmp_path / ".cache/mayfly/programs"
    assert environment.uploads_folder() == tmp_path / ".cache/mayfly/uploads"
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert environment.uploads_folder() == Path("/caches/mayfly/uploads")


def test_no_gpus_and_no_colours_are_said_by_an_empty_value_too(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("NO_COLOR", "")
    assert environment.visible_gpus() == "" and environment.colours_refused()


def test_an_agent_is_in_a_rehearsal_if_a_sandbox_is_named(monkeypatch):
    told = {
        "MAYFLY_WORK": "/work",
        "MAYFLY_BUCKET": "b",
        "MAYFLY_BOOTED_AT": "1795435200.5",
        "AWS_REGION": "us-east-1",
    }
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    for name in (
        "MAYFLY_ROOT",
        "MAYFLY_BOOT_STAGES",
        "AWS_ENDPOINT_URL",
        "AWS_EC2_METADATA_SERVICE_ENDPOINT",
    ):
        monkeypatch.delenv(name, raising=False)
    found = environment.agent_environment()
    assert (found.work, found.bucket, found.region) == (Path("/work"), "b", "us-east-1")
    assert found.booted_at == datetime.fromtimestamp(1795435200.5, timezone.utc)
    assert (found.endpoint_url, found.metadata_endpoint) == (None, "http://169.254.169.254")
    assert found.rehearsal is False and found.boot_stages == () and found.baked is False
    monkeypatch.setenv("MAYFLY_BOOT_STAGES", "1795435210 1795435220 1")
    found = environment.agent_environment()
    assert [at.timestamp() for at in found.boot_stages] == [1795435210, 1795435220] and found.baked is True
    monkeypatch.setenv("MAYFLY_ROOT", "/sandbox")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://127.0.0.1:1/imds")
    found = environment.agent_environment()
    assert (found.endpoint_url, found.rehearsal) == ("http://127.0.0.1:1", True)
    assert found.metadata_endpoint == "http://127.0.0.1:1/imds"


def test_the_agents_environment_says_what_is_missing(monkeypatch):
    monkeypatch.delenv("MAYFLY_WORK", raising=False)
    with pytest.raises(KeyError, match="MAYFLY_WORK"):
        environment.agent_environment()


def test_a_child_has_a_copy_and_this_process_stays_as_it_was(monkeypatch):
    monkeypatch.setenv("AWS_PROFILE", "somebody's")
    monkeypatch.setenv("PYTHONPATH", "/theirs")
    before = dict(os.environ)
    program = environment.for_program({"TOKEN": "secret"}, profiles=Path("/node/profiles.json"))
    assert program == before | {"MAYFLY_PROFILES": "/node/profiles.json", "TOKEN": "secret"}
    assert environment.without(["AWS_PROFILE"]).keys() == before.keys() - {"AWS_PROFILE"}
    child = environment.for_embedded_aws(source="/ours")
    assert child["PYTHONPATH"] == f"/ours{os.pathsep}/theirs"
    assert not [name for name in child if name.startswith("AWS_")]
    assert dict(os.environ) == before


def test_a_script_gets_processor_settings_and_no_other_variable(monkeypatch):
    for name in (*environment.PROCESSOR_SETTINGS, "LD_LIBRARY_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Haswell")
    monkeypatch.setenv("AGENT_SECRET", "of the agent")
    monkeypatch.setenv("LANG", "C")
    monkeypatch.setenv("PATH", "/bin")
    got = environment.for_script({"MAYFLY_OUT": "out"}, path="/usr/bin")
    ours = {"LANG": "C", "PYTHONUNBUFFERED": "1", "MAYFLY_OUT": "out", "PATH": "/usr/bin:/bin"}
    assert got == {**ours, "OPENBLAS_CORETYPE": "Haswell"}


@pytest.mark.parametrize(("platform", "loopback"), [("linux", "lo"), ("darwin", "lo0")])
def test_ranks_connect_over_loopback_and_leave_no_pickles(monkeypatch, platform, loopback):
    monkeypatch.setattr(sys, "platform", platform)
    ours = {
        "MAYFLY_RANKS": "/held/line",
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": loopback,
        "NCCL_SOCKET_IFNAME": loopback,
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",  # its own files are pickles
    }
    for name in ours:
        monkeypatch.delenv(name, raising=False)
    assert environment.for_ranks(Path("/held/line")) == {**os.environ, **ours}


@pytest.mark.parametrize(
    ("here", "seen"), [(None, "0,2"), ("4,5,6", "4,6"), ("GPU-a,GPU-b,GPU-c", "GPU-a,GPU-c")]
)
def test_ranks_see_the_gpus_that_are_left(monkeypatch, here, seen):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if here is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", here)
    assert environment.for_ranks(Path("/held/line"), gpus=(0, 2))["CUDA_VISIBLE_DEVICES"] == seen
    assert environment.for_ranks(Path("/held/line")).get("CUDA_VISIBLE_DEVICES") == here
