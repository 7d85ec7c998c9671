from __future__ import annotations

import pytest

from tests.wheels import write_wheel
from trainer.base.errors import UsageError
from trainer.launch.script_imports import imports_of, packages_of, versions_here

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


def test_what_the_files_import_is_named_at_the_versions_of_this_environment(desk):
    files = {
        "train.py": SCRIPT,
        "helper.py": b"import parts",
        "parts/__init__.py": b"",
        "parts/layers.py": b"",
        "x.txt": b"?",
    }
    assert packages_of(files, ["python", "train.py"]) == [
        "Fancy_Pack==2.0",
        "google-cloud-storage==3",
        "other-dist==1.5",
    ]
    assert packages_of(files, [], brought=["fancy-pack", "google-cloud-storage"]) == ["other-dist==1.5"]
    assert packages_of({"a.py": b"syntax error here"}, ["other-run", "a.py"]) == ["other-dist==1.5"]
    assert packages_of({}, ["python", "-m", "fancy.cli"]) == ["Fancy_Pack==2.0"]
    assert [item.top for item in imports_of({"a.py": b"import os, torch"})] == ["torch"]
    here = versions_here()
    assert here["fancy-pack"] == "2.0" and "of-a-folder" not in here and "mayfly" not in here


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
        assert packages_of(files, command) == ["Fancy_Pack==2.0", "other-dist==1.5"]
    with pytest.raises(UsageError, match="setup.py imports setuptools_of_another_time"):
        packages_of(files, ["run"])


def test_a_rehearsal_has_what_this_environment_has_whatever_brought_it(desk, tmp_path, monkeypatch):
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "of_no_package.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path / "lib"))
    with pytest.raises(UsageError):
        packages_of(
            {"a.py": b"import of_no_package"}, [], brought=["numpy"]
        )  # of a folder that the machine does not have
    monkeypatch.setattr("sys.prefix", str(tmp_path))
    assert packages_of({"a.py": b"import of_no_package"}, [], brought=["numpy"]) == []
    with pytest.raises(UsageError):
        packages_of({"a.py": b"import of_no_package"}, [])


def test_a_module_may_come_from_a_wheel_among_the_files(desk, tmp_path):
    write_wheel(tmp_path / "w", "tiny", version="1.2")
    wheel = (tmp_path / "w" / "tiny-1.2-py3-none-any.whl").read_bytes()
    assert packages_of({"a.py": b"import tiny", "w/tiny-1.2-py3-none-any.whl": wheel}, []) == ["tiny==1.2"]
    with pytest.raises(UsageError, match="w/tiny-1.2-py3-none-any.whl is not a wheel"):
        packages_of({"a.py": b"", "w/tiny-1.2-py3-none-any.whl": b"no zip"}, [])


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            b"import nowhere.sub",
            "a.py imports nowhere (neither the script's files nor this environment has it). Install it",
        ),
        (
            b"import mine",
            "a.py imports mine of of-a-folder (it was installed here from a folder, a file or a repository",
        ),
        (b"import faster", "a.py imports faster (neither"),
    ],
)
def test_an_import_that_the_machine_can_not_have_is_one_line(desk, text, line):
    with pytest.raises(UsageError) as refused:
        packages_of({"a.py": text}, [])
    assert line in str(refused.value)
