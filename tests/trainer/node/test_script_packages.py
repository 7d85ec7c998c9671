"""A script's packages: real venvs over this Python's own packages, from a folder of wheels."""

from __future__ import annotations

import base64
import hashlib
import subprocess
import sys
import threading
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trainer import environment
from trainer.errors import Stopped, TrainingFailed
from trainer.node.script_packages import install, make_venv


@pytest.fixture
def node(tmp_path: Path) -> Any:
    (tmp_path / "work").mkdir()
    return SimpleNamespace(work=tmp_path / "work", stopping=threading.Event(), status=SimpleNamespace(message=""))


def wheel(folder: Path, *, requires: str = "") -> str:
    """Write tiny-1.0, a package with one console script, and return its sha256."""
    folder.mkdir(exist_ok=True)
    path = folder / "tiny-1.0-py3-none-any.whl"
    about = f"Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n{requires}"
    files = {
        "tiny.py": "def main():\n    import torch, tiny\n    print('tiny', tiny.__file__, torch.__name__)\n",
        "tiny-1.0.dist-info/METADATA": about,
        "tiny-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "tiny-1.0.dist-info/entry_points.txt": "[console_scripts]\nrun-tiny = tiny:main\n",
    }
    hashes = {
        name: base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=") for name, text in files.items()
    }
    record = "".join(f"{name},sha256={hashes[name].decode()},{len(text)}\n" for name, text in files.items())
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in {**files, "tiny-1.0.dist-info/RECORD": record}.items():
            archive.writestr(name, text)
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.slow
def test_wheels_are_installed_by_their_hash_over_the_images_packages_and_its_programs_see_them(node, tmp_path):
    sha256 = wheel(tmp_path / "files", requires="Requires-Dist: torch>=99\n")  # no dependency is installed by itself
    requirements = tmp_path / "files" / "requirements.txt"
    bare = environment.for_script({}, path="/usr/bin")
    programs = make_venv(node, python=sys.executable, folder=tmp_path / "venv", environment=bare)
    given = {"python": sys.executable, "venv": tmp_path / "venv", "wheels": tmp_path / "files", "environment": bare}

    requirements.write_text(f"tiny==1.0 --hash=sha256:{'0' * 64}\n")
    with pytest.raises(TrainingFailed, match="can't install the script's requirements .ERROR: THESE PACKAGES DO NOT MATCH"):
        install(node, requirements=requirements, **given)
    requirements.write_text(f"tiny==1.0 --hash=sha256:{sha256}\n")
    install(node, requirements=requirements, **given)

    (tmp_path / "torch.py").write_text("")  # in the place of torch itself, which takes seconds to load
    said = subprocess.run(
        [programs / "run-tiny"], env={**bare, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=True
    )
    assert said.stdout.split() == ["tiny", str(next((tmp_path / "venv").rglob("tiny.py"))), "torch"]
    # A program of the image's, torchrun for one, runs with the venv's Python: it sees what was installed.
    ours, theirs = programs / "torchrun", Path(sys.executable).parent / "torchrun"
    assert theirs.read_text().startswith(f"#!{theirs.parent}") and f'exec\' "{programs / "python"}"' in ours.read_text()
    look = "import importlib.util as u; print(u.find_spec('torch').origin)"
    origin = subprocess.run([programs / "python", "-I", "-c", look], capture_output=True, text=True, check=True).stdout.strip()
    assert not Path(origin).is_relative_to(tmp_path), "torch is the image's own"

    node.stopping.set()
    with pytest.raises(Stopped, match="stopped before the script began"):
        install(node, requirements=requirements, **given)
