"""Where torch comes from, and what a poor machine is told."""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
_spec = importlib.util.spec_from_file_location("mayfly_setup", ROOT / "scripts" / "setup.py")
assert _spec and _spec.loader
setup = importlib.util.module_from_spec(_spec)
import sys  # noqa: E402

sys.modules["mayfly_setup"] = setup  # dataclasses look their module up
_spec.loader.exec_module(setup)


def choose(*, system="Linux", machine="x86_64", wish="", ready=None, reachable=True):
    return setup.torch_source(
        "2.13.0", system=system, machine=machine, wish=wish, ready=lambda version: ready, reachable=lambda url: reachable
    )


def test_a_cpu_build_that_lies_ready_is_taken_without_an_index():
    source = choose(ready="0.2 GB")
    assert source.pip_arguments == ("--no-index", "--no-deps", "torch==2.13.0")
    assert source.size == "0.2 GB"


def test_the_cpu_index_comes_next_on_linux():
    assert choose().pip_arguments == ("--index-url", setup.CPU_INDEX, "--no-deps", "torch==2.13.0")


def test_pypi_comes_last_and_its_size_is_said():
    source = choose(reachable=False)
    assert source.pip_arguments == ("torch==2.13.0",)
    assert "2.7 GB" in source.size and source.needed_gib > setup.NEEDED_GIB


def test_a_mac_takes_pypi_which_has_its_cpu_build():
    assert choose(system="Darwin", machine="arm64").pip_arguments == ("torch==2.13.0",)


def test_the_cuda_build_is_a_wish():
    assert "CUDA" in choose(wish="pypi", ready="0.2 GB").name


def test_an_unknown_wish_is_refused():
    with pytest.raises(SystemExit, match="MAYFLY_TORCH"):
        choose(wish="cu130")


def test_the_lock_pins_torch_and_moto_exactly():
    lock = (ROOT / "requirements.lock").read_text()
    assert setup.locked_version(lock, "torch") == "2.13.0"
    assert setup.locked_version(lock, "moto") == "5.2.5"
    cuda = re.findall(r"^(nvidia-(?!ml-py)[a-z0-9-]+|triton|cuda-[a-z]+)==", lock, re.MULTILINE)  # ml-py is NVML's, in Python
    assert cuda == [], "the desk's lock must not bring CUDA in; torch's source decides that"


def test_what_is_missing_is_one_line_with_its_remedy():
    fine = {"venv_works": True, "free_gib": 50.0, "needed_gib": 3.0, "version": (3, 11)}
    assert setup.missing(**fine) is None
    assert "apt-get install python3.11-venv" in setup.missing(**{**fine, "venv_works": False})
    assert "1.0 GB are free" in setup.missing(**{**fine, "free_gib": 1.0})


def test_the_lock_has_what_a_cpu_torch_needs():
    from importlib.metadata import requires

    lock = (ROOT / "requirements.lock").read_text()
    for requirement in requires("torch") or []:
        name, _, marker = requirement.partition(";")
        if "extra" not in marker and not any(word in name for word in ("nvidia", "cuda", "triton")):
            package = name.split("<")[0].split(">")[0].split("!")[0].split("=")[0].strip()
            setup.locked_version(lock, package)  # ends the test where it is missing
