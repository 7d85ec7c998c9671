"""Packages of a script, resolved at the desk from a folder of wheels: no index is asked."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tests.wheels import write_wheel
from trainer.aws.place import ACCOUNT, REHEARSAL
from trainer.base.errors import ConnectionFailed, UsageError
from trainer.cli.sources import script_packages as module
from trainer.cli.sources.script_packages import (
    IMAGE_PYTHONS,
    MADE,
    Target,
    resolve,
    target_of,
    with_packages,
)
from trainer.job.reading import job_from
from trainer.launch.script_needs import PackageList, read_list, versions_here

pytestmark = pytest.mark.slow

LINE = "oss-nvidia-driver-gpu-pytorch-2.13-ubuntu-26.04"
LINUX = Target(python="3.13", platform="x86_64-manylinux_2_34")
PINS = {"newer": "newer==2.0", "nvidia_ml_py": "nvidia-ml-py==1.0", "tiny": "tiny==1.0"}
CONSOLE: Any = SimpleNamespace(update=lambda text: None)


@pytest.fixture
def wheels(tmp_path):
    folder = tmp_path / "wheels"
    hashes = {
        "tiny": write_wheel(
            folder, requires=("torch>=2", 'newer; python_version >= "3.13"', 'win; sys_platform == "win32"')
        ),
        "newer": write_wheel(folder, "newer", version="2.0", tag="cp313-cp313-manylinux_2_28_x86_64"),
        "aged": write_wheel(folder, "aged", tag="cp39-cp39-manylinux2014_x86_64"),
        "mac": write_wheel(folder, "mac", tag="cp313-cp313-macosx_14_0_arm64"),
        "nvidia_ml_py": write_wheel(folder, "nvidia_ml_py"),
        "nvidia_cublas": write_wheel(folder, "nvidia_cublas"),  # the image's
    }
    files = {f"wheels/{path.name}": path.read_bytes() for path in folder.iterdir()}
    return SimpleNamespace(files=files, hashes=hashes)


def wanted(*lines: str) -> PackageList:
    return read_list("requirements.txt", "\n".join(lines).encode())


def test_packages_are_resolved_for_the_machine_with_hashes(wheels):
    listed = wanted("tiny==1.0", "nvidia-cublas", "nvidia-ml-py")
    text = resolve(listed, LINUX, wheels=wheels.files)
    lines = [f"{pin} --hash=sha256:{wheels.hashes[name]}" for name, pin in PINS.items()]
    assert [" ".join(line.split()) for line in read_list("made.txt", text.encode()).lines] == lines
    other = Target(python="3.12", platform="aarch64-manylinux_2_34")
    assert "newer" not in (text := resolve(listed, other, wheels=wheels.files)) and "tiny==1.0" in text


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("gone", "gone was not found in the provided package locations"),
        ("tiny>=3", "only tiny==1.0 is available and you require tiny>=3"),
        ("aged", "aged==1.0 has no wheels with a matching Python"),
        ("mac", "mac==1.0 has no wheels with a matching platform tag"),
    ],
)
def test_what_has_no_wheel_for_the_machine_is_named(wheels, line, said):
    with pytest.raises(UsageError) as refused:
        resolve(wanted(line), LINUX, wheels=wheels.files)
    text = str(refused.value)
    assert (
        "can't be installed for Python 3.13 on x86_64 Linux (" in text and said in text and "\n" not in text
    )


def test_an_index_that_does_not_answer_is_one_line(monkeypatch):
    monkeypatch.setattr(
        module.environment, "for_resolver", lambda: {"UV_DEFAULT_INDEX": "http://127.0.0.1:9/simple", **FAST}
    )
    with pytest.raises(ConnectionFailed) as failed:
        resolve(wanted("tiny"), LINUX)
    said = str(failed.value)
    assert (
        "can't be resolved (http://127.0.0.1:9/simple/tiny/ does not answer)" in said
        and "neither asks an index" in said
    )


FAST = {"UV_HTTP_RETRIES": "0", "UV_NO_CACHE": "1"}
SOURCES = """[project]
name = "me"
version = "1"
dependencies = ["tiny", "torch"]
[tool.uv.sources]
torch = { index = "pytorch" }
tiny = { path = "PLACE" }
[[tool.uv.index]]
name = "pytorch"
url = "https://user:word@index.invalid/simple"
explicit = true
"""
PUBLIC = "tiny==1.0 \\\n    # from https://pypi.org/simple\n"


def test_packages_from_outside_the_public_index_are_refused(wheels, tmp_path, monkeypatch):
    monkeypatch.setattr(module.environment, "for_resolver", lambda: FAST)
    text = SOURCES.replace("PLACE", f"{tmp_path}/wheels/tiny-1.0-py3-none-any.whl")
    listed = read_list("pyproject.toml", text.encode())
    with pytest.raises(UsageError, match="pyproject.toml takes packages from an index or a place of its own"):
        resolve(listed, LINUX, image=["newer"])
    assert "tiny==1.0 " in resolve(listed, LINUX, wheels=wheels.files)
    assert resolve(listed, LINUX, image=["tiny"]) == "", "what is not fetched comes from nowhere"
    module._refuse_elsewhere(listed, PUBLIC)
    default = read_list("pyproject.toml", text.replace("explicit", "# ex").encode())
    for given, said in (
        (listed, PUBLIC.replace("pypi.org", "me")),
        (listed, "tiny @ https://x"),
        (default, PUBLIC),
    ):
        with pytest.raises(UsageError, match="the machine asks the public index alone"):
            module._refuse_elsewhere(given, said)


def packages(job, files, *, rehearsal=False):
    return with_packages(job, files, LINE, place=REHEARSAL if rehearsal else ACCOUNT, console=CONSOLE)


def script_job(folder, **script):
    tables = {"name": "net", "script": {"command": "python train.py", "root": str(folder), **script}}
    return job_from({**tables, "machine": {"max_duration": "2h"}})


@pytest.mark.parametrize("listed", [b"", b"tiny\n"])
def test_a_rehearsal_refuses_a_python_that_no_machine_has(tmp_path, monkeypatch, listed):
    monkeypatch.setattr(module, "resolve", lambda *_, **__: "")
    files = {"train.py": b"import os", **({"requirements.txt": listed} if listed else {})}
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    for python in ("", here, "3.9", *IMAGE_PYTHONS.values()):
        packages(script_job(tmp_path, python=python), files, rehearsal=True)
    with pytest.raises(UsageError) as refused:
        packages(script_job(tmp_path, python="3.99"), files, rehearsal=True)
    said = str(refused.value)
    assert said.startswith(f"script.python is 3.99 (this machine has Python {here}, ") and "\n" not in said


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("requirements.txt", "# mine\ntiny  # which\ntorch>=2\n"),
        ("pyproject.toml", '[project]\nname = "me"\nversion = "1"\ndependencies = ["tiny", "torch>=2"]\n'),
        ("train.py", '# /// script\n# dependencies = [\n#   "tiny",\n#   "torch>=2",\n# ]\n# ///\n'),
    ],
)
def test_a_list_is_resolved_and_kept_beside_the_job(wheels, tmp_path, name, text):
    (tmp_path / name).write_text(text)
    files = {"train.py": b"import os, torch, tiny", **wheels.files}
    files |= {name: text.encode()} if name == "train.py" else {}
    job, sent, made = packages(script_job(tmp_path), files)
    assert made is not None and made.names == ["newer==2.0", "tiny==1.0"] and made.source == name
    assert made.to_dict()["of_the_image"] == ["torch>=2"]
    assert job.script.requirements == "net.requirements.txt" and sent.keys() - files.keys() == {
        "net.requirements.txt"
    }
    assert sent["net.requirements.txt"].decode() == made.text and made.text.startswith(
        f"{MADE} Python 3.13 on x86_64 Linux, from"
    )
    assert {path.name for path in tmp_path.iterdir()} == {name, "wheels"}, "a dry run keeps nothing"
    assert made.keep() == f"kept: {made.path}"
    assert (
        replace(made, path=tmp_path / "gone" / "x")
        .keep()
        .endswith("can't be written (No such file or directory)")
    )
    kept, again, none = packages(script_job(tmp_path, requirements="net.requirements.txt"), sent)
    assert none is None and again == sent and kept.script.requirements == "net.requirements.txt", (
        "with hashes it goes as it is"
    )
    made.path.write_text("mine")
    with pytest.raises(UsageError, match="net.requirements.txt is in the way"):
        packages(script_job(tmp_path), files)


def test_an_import_that_no_list_has_is_refused(wheels, tmp_path):
    files = {"train.py": b"import tiny, numpy", **wheels.files}
    line = rf"train.py imports tiny, numpy .no file lists its packages.. Add to {tmp_path}/requirements.txt: tiny==1.0, numpy=="
    with pytest.raises(UsageError, match=line):
        packages(script_job(tmp_path), files)
    hashed = f"tiny==1.0 --hash=sha256:{wheels.hashes['tiny']}\n"
    for text in ("tiny", hashed):
        (tmp_path / "requirements.txt").write_text(text)
        with pytest.raises(
            UsageError, match="train.py imports numpy .requirements.txt lists no such package"
        ):
            packages(script_job(tmp_path), files)
    (tmp_path / "requirements.txt").unlink()
    assert packages(script_job(tmp_path), {"train.py": b"import torch"})[2] is None


def test_a_rehearsals_image_is_this_environment(wheels, tmp_path):
    files = {"train.py": b"import numpy, torch, boto3"}
    assert packages(script_job(tmp_path), files, rehearsal=True) == (script_job(tmp_path), files, None)
    listed = {"r.txt": b"numpy>=2\ntorch\n", **files}
    job, _, made = packages(script_job(tmp_path, requirements="r.txt"), listed, rehearsal=True)
    assert made is None and job.script.requirements == ""
    (tmp_path / "requirements.txt").write_text("tiny")
    job, _, made = packages(
        script_job(tmp_path), {"train.py": b"import tiny", **wheels.files}, rehearsal=True
    )
    assert made is not None and "tiny==1.0" in made.names
    assert made.target.python == f"{sys.version_info.major}.{sys.version_info.minor}"


def test_requirements_of_another_torch_are_refused(tmp_path):
    files = {"train.py": b""}
    with pytest.raises(
        UsageError, match=r"name torch==2.5.1 \(the image has torch 2.13, built for its driver\)"
    ):
        packages(script_job(tmp_path, requirements="r.txt"), {**files, "r.txt": b"torch==2.5.1\n"})
    with pytest.raises(UsageError, match="name torch==1.0.0"):
        packages(
            script_job(tmp_path, requirements="r.txt"), {**files, "r.txt": b"torch==1.0.0\n"}, rehearsal=True
        )


def test_hashed_requirements_must_fit_the_machines_python(wheels, tmp_path):
    job = script_job(tmp_path, requirements="r.txt")
    fits = {"r.txt": f"tiny==1.0 --hash=sha256:{wheels.hashes['tiny']}\n".encode(), **wheels.files}
    assert packages(job, fits) == (job, fits, None)
    (tmp_path / "requirements.txt").write_bytes(fits["r.txt"])
    found, sent, _ = packages(script_job(tmp_path), wheels.files)
    assert found.script.requirements == "requirements.txt" and sent["requirements.txt"] == fits["r.txt"]
    aged = {"r.txt": f"aged==1.0 --hash=sha256:{wheels.hashes['aged']}\n".encode(), **wheels.files}
    for rehearsal in (False, True):
        with pytest.raises(UsageError, match="aged==1.0 has no wheels with a matching Python"):
            packages(job, aged, rehearsal=rehearsal)
    assert packages(job, {"r.txt": aged["r.txt"]}, rehearsal=True)[2] is None, "no index is asked"


def test_hashed_requirements_that_are_installed_need_no_wheel(wheels, tmp_path):
    job, pip = script_job(tmp_path, requirements="r.txt"), versions_here()["pip"]
    ours = {"r.txt": f"pip=={pip} --hash=sha256:{'0' * 64}\n".encode(), **wheels.files}
    assert packages(job, ours, rehearsal=True) == (job, ours, None)
    with pytest.raises(UsageError, match="pip was not found in the provided"):
        packages(job, {**ours, "r.txt": ours["r.txt"].replace(pip.encode(), b"1.0")}, rehearsal=True)


def test_the_machines_python_follows_from_image_line_or_job():
    assert target_of(LINE, given="", here=False) == LINUX
    newer = Target(python="3.14", platform="x86_64-manylinux_2_34")
    assert target_of(LINE, given="3.14", here=False) == newer
    with pytest.raises(UsageError, match="the Python of the image line mine is not known"):
        target_of("mine", given="", here=False)
