from __future__ import annotations

from importlib import metadata

import pytest

from trainer.base.errors import UsageError
from trainer.job.script import ScriptSettings
from trainer.launch.script_files import imports_in
from trainer.launch.script_needs import (
    PackageList,
    imports_of,
    listed_packages,
    missing_imports,
    read_list,
    refuse_missing,
    versions_here,
)

HASH = f"--hash=sha256:{'0' * 64}"
BLOCK = b'# /// script\r\n# dependencies = [\r\n#   "tiny>=1",\r\n# ]\r\n# ///\r\nimport tiny\r\n'
PROJECT = b'[project]\nname = "me"\ndependencies = ["fancy-pack"]\n'
SCRIPT = b"""
import os, torch, helper, fancy.sub
from google.cloud import storage
from . import beside
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    import for_types
try:
    import faster
except (ImportError, OSError):
    faster = None
def late():
    from parts.layers import x
    import other_name as o
"""


@pytest.fixture
def desk(tmp_path, monkeypatch):
    """An environment with a few packages of its own beside this one's."""
    site = tmp_path / "site"
    packages = {
        "Fancy_Pack": ("2.0+local", ["fancy/__init__.py"], ""),
        "other-dist": ("1.5", ["other_name.py"], ""),
        "google-cloud-storage": ("3", ["google/cloud/storage/__init__.py"], ""),
        "google-auth": ("4", ["google/auth/__init__.py"], ""),
        "of-a-folder": ("1", ["mine.py"], '{"url": "file:///home/me/mine", "dir_info": {}}'),
    }
    for name, (version, files, direct) in packages.items():
        info = site / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (info / "RECORD").write_text("".join(f"{file},,\n" for file in files))
        if direct:
            (info / "direct_url.json").write_text(direct)
        for file in files:
            (site / file).parent.mkdir(parents=True, exist_ok=True)
            (site / file).write_text("raise SystemExit('nothing is imported')")
    scripts = site / "other_dist-1.5.dist-info" / "entry_points.txt"
    scripts.write_text("[console_scripts]\nother-run = other_name.cli:main\n")
    monkeypatch.syspath_prepend(str(site))
    here = metadata.packages_distributions()
    here.pop("nvidia", None)  # of torch's CUDA build, which not every machine has
    monkeypatch.setattr(metadata, "packages_distributions", lambda: here)


def missing(files, words=(), *, listed=(), installed=(), brought=()) -> dict[str, str]:
    """Return the requirement of each missing module."""
    found = missing_imports(files, words, listed=listed, installed=installed, brought=brought)
    return {item.top: requirement for item, requirement in found.items()}


def test_the_list_is_the_named_file_or_the_first_found(tmp_path):
    files = {"train.py": BLOCK, "plain.py": b"import tiny", "r.txt": b"other-dist\n"}

    def listed(script: str, requirements: str = "") -> tuple[str, tuple[str, ...]]:
        command = f"python -u {script} --lr 1"
        found = listed_packages(
            ScriptSettings(command=command, root=str(tmp_path), requirements=requirements), files
        )
        return found.name, found.lines

    assert listed("./plain.py") == ("requirements.txt", ()) and listed("plain.py", "./r.txt")[0] == "r.txt"
    (tmp_path / "pyproject.toml").write_bytes(b"[tool.ruff]\n")
    assert listed("plain.py") == ("requirements.txt", ())
    (tmp_path / "pyproject.toml").write_bytes(PROJECT)
    assert listed("plain.py") == ("pyproject.toml", ("fancy-pack",))
    (tmp_path / "requirements.txt").write_text("wandb>=0.20\n")
    assert listed("plain.py") == ("requirements.txt", ("wandb>=0.20",))
    assert listed("./train.py") == ("train.py", ("tiny>=1",))
    assert listed("train.py", "r.txt") == ("r.txt", ("other-dist",))


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (f"a==1.0 \\\n    {HASH} \\\n    {HASH}\n# via x\nb[c]==2 ; python_version >= '3.10' {HASH}\n", ""),
        ("lightning\ntorch\nwandb>=0.20, <1 ; python_version >= '3.12'\r\nb[c]~=2.0\n", ""),
        (f"nvidia-ml-py==1 {HASH}\n", ""),
        (f"a==1 {HASH}\nlightning==2.0\n", "has lightning without a hash"),
        (f"a==1 {HASH}\nlightning\n", "has 'lightning' (a line with hashes is package==version)"),
        (f"torch==2.0 {HASH}\n", "names torch (the image brings it"),
        (f"nvidia_cublas.cu12==1 {HASH}\n", "names nvidia_cublas.cu12"),
        ("--extra-index-url https://example.com\n", "has '--extra-index-url https://example.com'"),
        (f"a @ https://example.com/a.whl {HASH}\n", "a line with hashes is package==version"),
        ("a @ https://example.com/a.whl\n", "a line is a package with versions, such as lightning>=2.5"),
        ("-r other.txt\n", "has '-r other.txt'"),
        (f"a==1 {HASH} --global-option=x\n", "without a hash"),
        ("[project]", ""),
        ("[tool.x]", "lists no packages ('project')"),
        ("[project]\ndependencies = [1]", "lists no packages"),
        ("[project]\ndependencies = [", "lists no packages (Invalid value"),
        ('[project]\ndependencies = ["-e ."]', "has '-e .'"),
        (f'[project]\ndependencies = ["a==1 {HASH}"]', "has 'a==1 --hash=sha256:"),
    ],
)
def test_lists_are_read_strictly_and_leave_torch_alone(text, line):
    name = "pyproject.toml" if text.startswith("[") else "requirements.txt"
    if not line:
        read_list(name, text.encode())
        return
    with pytest.raises(UsageError) as refused:
        read_list(name, text.encode())
    assert line in str(refused.value)


def test_an_import_without_a_listed_package_is_missing(desk):
    files = {
        "train.py": SCRIPT,
        "helper.py": b"import parts",
        "parts/__init__.py": b"",
        "parts/layers.py": b"",
        "x.txt": b"?",
    }
    lacks = {"fancy": "Fancy_Pack==2.0", "google": "", "other_name": "other-dist==1.5"}
    assert missing(files, ["python", "train.py"]) == lacks
    assert missing(files, listed=["fancy-pack", "google-auth"]) == {"other_name": "other-dist==1.5"}
    assert missing(files, installed=["fancy-pack", "google-auth", "other-dist"]) == {}
    assert missing(files, brought=["fancy-pack", "google-cloud-storage"]) == {"other_name": "other-dist==1.5"}
    assert missing({"a.py": b"syntax error here"}, ["other-run", "a.py"]) == {"other_name": "other-dist==1.5"}
    assert missing({}, ["python", "-m", "fancy.cli"]) == {"fancy": "Fancy_Pack==2.0"}
    assert [item.top for item in imports_of({"a.py": b"import os, torch"}, [])] == ["torch"]
    assert missing({"a.py": b"import torch, nvidia.cuda"}, ["torchrun", "a.py"]) == {"nvidia": ""}
    here = versions_here()
    assert here["fancy-pack"] == "2.0" and "of-a-folder" not in here and "mayfly" not in here


def test_a_listed_package_unknown_here_may_have_any_module(desk):
    files = {"a.py": b"import cv2, wandb"}
    assert missing(files, listed=["opencv-python"]) == {}
    assert missing(files, listed=["wandb"]) == {"cv2": ""}, "its name tells what it has"
    assert missing(files, listed=["fancy-pack"]) == {"cv2": "", "wandb": ""}, "it is installed here"
    assert missing(files, listed=["fancy-pack"], installed=["fancy-pack", "cv2"]) == {"wandb": ""}


def test_of_the_files_those_count_that_the_command_reaches(desk):
    files = {
        "train.py": b"from parts import a\nimport net",
        "net.py": b"import fancy",
        "parts/__init__.py": b"from . import a\nfrom .b import x",
        "parts/a.py": b"from .numpy import x",
        "parts/b.py": b"if __name__ == '__main__':\n    import other_name\nif True:\n    import lacking",
        "setup.py": b"import setuptools_of_another_time",
        "tests/test_net.py": b"import nothing_that_is_here",
    }
    for command in (["python", "train.py"], ["python", "-m", "train"], ["other-run", "launch", "train.py"]):
        assert missing(files, command).keys() == {"fancy", "other_name"}
    assert "setuptools_of_another_time" in missing(files, ["run"])


def test_a_package_that_imports_itself_everywhere_is_read_once():
    lines = "".join(f"from pkg.sub{number} import x\n" for number in range(30)) + "import needed\n"
    files = {f"pkg/sub{number}.py": lines.encode() for number in range(600)}
    files |= {"train.py": b"import pkg.sub1\n"}
    found = imports_of(files, ["python", "train.py"])
    assert len(found) == 600 and {item.top for item in found} == {"needed"}


def test_imports_of_a_deep_expression_are_found():
    text = b"import fancy\nx = " + b" + ".join([b"1"] * 2_000) + b"\nfrom ..other import y"
    assert [(item.top, item.optional) for item in imports_in(text)] == [("fancy", False), ("other", True)]


def test_a_rehearsal_has_what_this_environment_has(desk, tmp_path, monkeypatch):
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "of_no_package.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path / "lib"))
    files = {"a.py": b"import of_no_package"}
    assert missing(files, brought=["numpy"]) == {"of_no_package": ""}, "of a folder the machine does not have"
    monkeypatch.setattr("sys.prefix", str(tmp_path))
    assert missing(files, brought=["numpy"]) == {}
    assert missing(files) == {"of_no_package": ""}


@pytest.mark.parametrize(
    ("text", "listed", "line"),
    [
        (
            b"import fancy\nimport nowhere.sub",
            PackageList(),
            "a.py imports fancy, nowhere (no file lists its packages). Add to src/requirements.txt: Fancy_Pack==2.0,"
            " nowhere (or its package, if that has another name).",
        ),
        (
            b"import fancy, nowhere",
            read_list("pyproject.toml", PROJECT),
            "a.py imports nowhere (pyproject.toml lists no such package). Add to the dependencies in"
            ' src/pyproject.toml: "nowhere" (or',
        ),
        (
            b"import mine",
            PackageList(),
            "a.py imports mine of of-a-folder (it was installed here from a folder",
        ),
        (b"import tiny", PackageList(), "Add to src/requirements.txt: tiny==1.2."),
    ],
)
def test_a_missing_import_is_refused_with_the_line_to_add(desk, text, listed, line):
    script = ScriptSettings(command="python a.py", root="src")
    files = {"a.py": text, "b.py": b"import other_name", "w/tiny-1.2-py3-none-any.whl": b""}
    with pytest.raises(UsageError) as refused:
        refuse_missing(script, files, listed, resolved=(), brought=())
    assert line in str(refused.value)
    resolved = ["fancy_pack==2.0", "nowhere==1", "of-a-folder==1", "tiny==1.2"]
    refuse_missing(script, files, listed, resolved=resolved, brought=())


def test_a_folder_without_init_is_named_and_not_a_package(tmp_path):
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "model.py").touch()
    script, files = (
        ScriptSettings(command="python a.py", root=str(tmp_path)),
        {"a.py": b"from parts.model import Net"},
    )
    with pytest.raises(UsageError) as refused:
        refuse_missing(script, files, listed_packages(script, files), resolved=(), brought=())
    assert "parts has no __init__.py" in refused.value.why and "Add to" not in refused.value.do


def test_a_byte_order_mark_is_no_part_of_a_list():
    mark = b"\xef\xbb\xbf"
    assert read_list("requirements.txt", mark + b"tiny>=1").lines == ("tiny>=1",)
    script = ScriptSettings(command="python a.py")
    assert listed_packages(script, {"a.py": mark + BLOCK}).lines == ("tiny>=1",)
