from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

from trainer.base.errors import UsageError
from trainer.machines.chips import named_profile, packaged, profiles
from trainer.machines.choice import Device, profile_of
from trainer.machines.memory import figures

NOT_OF_AWS = {
    *("rtx_3090", "rtx_4070_ti", "rtx_4080", "rtx_4090", "rtx_5080", "rtx_5090", "rtx_6000_ada", "rtx_a6000"),
    *("a10", "h100_94gb", "cpu"),
}
INSTANCES = Path(__file__).parents[3] / "trainer" / "machines" / "instances.csv"


def test_the_package_has_profiles_of_desktop_gpus():
    assert packaged().keys() >= NOT_OF_AWS


@pytest.mark.parametrize(
    ("name", "memory_gib", "profile"),
    [
        ("NVIDIA A10", 22.49, "a10"),
        ("NVIDIA A10G", 22.35, "a10g"),
        ("NVIDIA A100-SXM4-40GB", 40.0, "a100_40gb"),
        ("NVIDIA H100 NVL", 93.58, "h100_94gb"),
        ("NVIDIA H100 80GB HBM3", 79.6, "h100"),
        ("NVIDIA RTX 6000 Ada Generation", 47.99, "rtx_6000_ada"),
        ("NVIDIA RTX A6000", 47.99, "rtx_a6000"),
        ("NVIDIA GeForce RTX 3090", 24.0, "rtx_3090"),
        ("NVIDIA GeForce RTX 4070 Ti", 11.99, "rtx_4070_ti"),
        ("NVIDIA GeForce RTX 4080", 15.99, "rtx_4080"),
    ],
)
def test_a_driver_s_name_leads_to_its_profile(name, memory_gib, profile):
    assert profile_of(Device(name=name, memory_gib=memory_gib, free_gib=memory_gib)).name == profile


def test_every_chip_of_aws_has_a_profile():
    for row in csv.DictReader(INSTANCES.read_text(encoding="utf-8").splitlines()):
        memory_gib = float(row["vram_gib_per_gpu"])
        profile = profile_of(Device(name=row["gpu_model"], memory_gib=memory_gib, free_gib=memory_gib))
        assert profile == packaged().get(profile.name), row["instance_type"]
        assert profile.memory_gib == memory_gib
        assert profile.compute_capability == row["compute_capability"]
        assert profile.bf16 == (row["native_bf16"] == "yes")


def test_every_peak_has_a_source_with_its_date():
    for profile in packaged().values():
        assert not profile.peak_tflops or re.search(r"2026-11-2[16]$", profile.peak_source), profile.name


def test_an_unknown_profile_names_the_nearest():
    with pytest.raises(UsageError, match=r"unknown GPU profile 'h20'\. Did you mean h200"):
        named_profile("h20")


def test_the_users_file_changes_a_profile_and_adds_another(user_file):
    user_file.write_text(
        '[rtx_4090]\nmodels_per_gpu = 6\nbatch = { 1m = 512 }\n\n[workshop]\ndevices = ["NVIDIA RTX'
        ' A6000"]\nmemory_gib = 48\ncompute_capability = "8.6"\nbf16 = true\n'
    )
    found = figures(named_profile("rtx_4090"))
    assert (found["models_per_gpu"].value, found["models_per_gpu"].basis) == (6, "yours")
    assert found["batch"].value["1m"] == 512 and found["batch"].value["1h"] > 1
    assert named_profile("rtx_4090").memory_gib == packaged()["rtx_4090"].memory_gib
    assert profile_of(Device(name="NVIDIA RTX A6000", memory_gib=47.5, free_gib=47.5)).name == "workshop"


def test_a_users_json_that_is_no_table_is_one_error_line(tmp_path, monkeypatch):
    file = tmp_path / "profiles.json"
    file.write_text("[3]")
    monkeypatch.setenv("MAYFLY_PROFILES", str(file))
    with pytest.raises(UsageError, match="can't be read"):
        profiles()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("models = 3", "is outside a profile"),
        ("[h100]\nmodels = 3", r"\[h100\] has a key 'models'\. Did you mean models_per_gpu"),
        ("[h100]\nmodels_per_gpu = 2.5", "models_per_gpu is 2.5"),
        ("[h100]\nmemory_gib = -1", "memory_gib is -1"),
        ("[h100]\nmemory_gib = inf", "memory_gib is inf"),
        (f"[h100]\nmemory_gib = 1{'0' * 400}", "memory_gib is 1000"),
        ("[h100]\nmemory_per_model_gib = 1e-320", "memory_per_model_gib is 1e-320"),
        ('[h100]\npeak_tflops = { bf16 = "fast" }', "peak_tflops is"),
        ('[h100]\ndevices = "H100"', "devices is 'H100'"),
        ("[h100]\nbatch = { 1m = 0 }", "batch is"),
        ("[mine]\nbf16 = true", "has no memory_gib"),
        ("[h100", "can't be read"),
        (f"x = {'[' * 100_000}", "can't be read"),
    ],
)
def test_a_mistake_in_the_users_file_is_one_error_line(user_file, text, words):
    user_file.write_text(text)
    with pytest.raises(UsageError, match=words) as caught:
        profiles()
    assert str(user_file) in str(caught.value)
