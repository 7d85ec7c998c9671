"""The source of torch, the locks, and the messages of a machine that lacks something."""

import importlib.util
import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).resolve().parents[2]


def load(name):
    spec = importlib.util.spec_from_file_location(f"mayfly_{name}", ROOT / "scripts" / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[f"mayfly_{name}"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


setup, lock_torch = load("setup"), load("lock_torch")


def set_up(folder, **pythons):
    """Run scripts/setup where PATH has these Pythons alone; their values are their versions."""
    (folder / "scripts").mkdir()
    shutil.copy(ROOT / "scripts" / "setup", folder / "scripts")
    (folder / "scripts" / "setup.py").write_text("import sys; print(sys.argv[0])")
    (folder / "bin").mkdir()
    for tool in ("bash", "dirname", "env"):
        (folder / "bin" / tool).symlink_to(shutil.which(tool))
    for name, version in pythons.items():
        asked = f"import sys; sys.version_info = {version}; exec(sys.argv[1])"
        run = f'[ "$1" != -c ] || exec {sys.executable} -c "{asked}" "$2"; exec {sys.executable} "$@"'
        (script := folder / "bin" / name.replace("_", ".")).write_text(f"#!{shutil.which('sh')}\n{run}\n")
        script.chmod(0o755)
    variables = {"PATH": str(folder / "bin")}
    return subprocess.run(
        [str(folder / "scripts" / "setup")], env=variables, capture_output=True, text=True, check=False
    )


def test_setup_finds_every_supported_python_by_its_name(tmp_path):
    about = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    minors = [int(match[1]) for one in about if (match := re.search(r"Python :: 3\.(\d+)$", one))]
    assert minors == [11, 12, 13, 14]
    for minor in minors:
        (folder := tmp_path / str(minor)).mkdir()
        done = set_up(folder, **{f"python3_{minor}": (3, minor, 0)})
        assert done.stdout == "scripts/setup.py\n", done.stderr


def test_setup_refuses_a_python_that_torch_has_no_build_for(tmp_path):
    done = set_up(tmp_path, python3=(3, 15, 0), python=(3, 10, 9))
    assert done.returncode == 103 and done.stdout == ""
    assert done.stderr.startswith("error: no Python 3.11 to 3.14 is on PATH")


def choose(*, system="Linux", machine="x86_64", wish="", ready=None, reachable=True):
    return setup.torch_source(
        "2.13.0",
        system=system,
        machine=machine,
        wish=wish,
        ready=lambda version: ready,
        reachable=lambda url: reachable,
    )


@pytest.mark.parametrize(
    ("wishes", "lock", "index"),
    [
        ({"ready": "0.2 GB"}, setup.CPU_LOCK, ("--no-index",)),
        ({}, setup.CPU_LOCK, ("--index-url", setup.CPU_INDEX)),
        ({"reachable": False}, setup.CUDA_LOCK, ()),
        ({"system": "Darwin", "machine": "arm64"}, "", ()),  # PyPI has its CPU build
        ({"wish": "pypi", "ready": "0.2 GB"}, setup.CUDA_LOCK, ()),
    ],
    ids=("a build at hand", "the CPU index", "PyPI comes last", "a Mac", "CUDA is a wish"),
)
def test_torch_comes_from_the_first_source_that_there_is(wishes, lock, index):
    source = choose(**wishes)
    assert (source.lock, source.index) == (lock, index)
    if lock == setup.CUDA_LOCK:
        assert "2.7 GB" in source.size and source.needed_gib > setup.NEEDED_GIB


def test_an_unknown_wish_is_refused():
    with pytest.raises(SystemExit, match="MAYFLY_TORCH"):
        choose(wish="cu130")


@pytest.mark.parametrize("file", [setup.LOCK, setup.CPU_LOCK, setup.CUDA_LOCK])
def test_everything_that_a_lock_names_has_a_hash(file):
    found = lock_torch.entries((ROOT / file).read_text())
    assert found and all("--hash=sha256:" in entry for entry in found.values())


def test_the_locks_of_torchs_builds_go_with_the_desks():
    version = setup.locked_version((ROOT / setup.LOCK).read_text(), "torch")
    assert setup.locked_version((ROOT / setup.CPU_LOCK).read_text(), "torch") == version
    cuda = lock_torch.entries((ROOT / setup.CUDA_LOCK).read_text())
    assert {"triton", "cuda-toolkit", "nvidia-cublas", "nvidia-cudnn-cu13", "nvidia-nccl-cu13"} <= cuda.keys()
    assert not cuda.keys() & lock_torch.entries((ROOT / setup.LOCK).read_text()).keys()


def test_a_build_whose_hash_is_not_locked_is_not_used(monkeypatch, capsys):
    download = {"url": "file:///opt/torch-2.13.0+cpu.whl", "archive_info": {"hashes": {"sha256": "a" * 64}}}
    report = json.dumps({"install": [{"download_info": download}]})
    monkeypatch.setattr(
        setup.subprocess, "run", lambda *_, **__: SimpleNamespace(returncode=0, stdout=report)
    )
    assert setup.ready_build(Path("python"), "2.13.0", f"--hash=sha256:{'b' * 64}") is None
    assert "is not used" in capsys.readouterr().err
    assert setup.ready_build(Path("python"), "2.13.0", f"--hash=sha256:{'a' * 64}") == "size unknown"


PAGE = "".join(
    f'<a href="/whl/cpu/torch-{version}%2Bcpu-{python}-{abi}-{platform}.whl#sha256={number:064x}">x</a><br/>\n'
    for number, (version, python, abi, platform) in enumerate(
        [
            ("2.13.0", "cp311", "cp311", "manylinux_2_28_x86_64"),
            ("2.13.0", "cp312", "cp312", "manylinux_2_28_aarch64"),
            ("2.13.0", "cp310", "cp310", "manylinux_2_28_x86_64"),  # a Python that is not ours
            ("2.13.0", "cp314", "cp314t", "manylinux_2_28_x86_64"),  # without the lock of the interpreter
            ("2.13.0", "cp311", "cp311", "win_amd64"),
            ("2.13.01", "cp311", "cp311", "manylinux_2_28_x86_64"),
        ]
    )
)


def test_hashes_of_the_cpu_index_are_for_linux_and_our_pythons():
    found = lock_torch.cpu_hashes(PAGE, "2.13.0")
    assert list(found.values()) == [f"{0:064x}", f"{1:064x}"]
    text = lock_torch.cpu_lock("2.13.0", found.values())
    assert setup.locked_version(text, "torch") == "2.13.0" and text.count("--hash=sha256:") == 2


def test_the_lock_pins_torch_and_moto_exactly():
    lock = (ROOT / "requirements.lock").read_text()
    assert setup.locked_version(lock, "torch") == "2.13.0"
    assert setup.locked_version(lock, "moto") == "5.2.5"
    cuda = re.findall(
        r"^(nvidia-(?!ml-py)[a-z0-9-]+|triton|cuda-[a-z]+)==", lock, re.MULTILINE
    )  # ml-py is NVML's, in Python
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
