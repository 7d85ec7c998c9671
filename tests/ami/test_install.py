"""The script that installs the environment, run as it stands, with packages from a folder and without a
network.
"""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "ami" / "install.sh"
IMPORTED = "import jmespath, mayfly_stub, six; print(mayfly_stub.VERSION, jmespath.__version__, six.__name__)"


def wheel(folder: Path, name: str, version: str, module: str) -> str:
    """Write a wheel of one module; return its line of a lock."""
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": module,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},sha256={_digest(text)},{len(text)}\n" for path, text in files.items())
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name_in_wheel, text in {**files, f"{info}/RECORD": f"{record}{info}/RECORD,,\n"}.items():
            archive.writestr(name_in_wheel, text)
    return f"{name}=={version} --hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}\n"


def _digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()


class Image:
    """A folder with packages, a lock of them, and a prefix to install into."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.prefix, self.lock = folder, folder / "prefix", folder / "stub.lock"
        self.script = SCRIPT

    def locks(self, version: str) -> None:
        """Lock a stub package at a version, and one that the desk has with another."""
        lines = wheel(self.folder, "mayfly_stub", version, f"VERSION = '{version}'\n")
        self.lock.write_text(lines + wheel(self.folder, "jmespath", "99.0", "__version__ = '99.0'\n"))

    def install(self, *more: str, python: str = sys.executable) -> subprocess.CompletedProcess[str]:
        command = ["bash", str(self.script), "--python", python, "--prefix", str(self.prefix), *more]
        own = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(self.folder)}
        return subprocess.run(command, env={**os.environ, **own}, capture_output=True, text=True, check=False)

    def imports(self) -> str:
        command = [self.prefix / "bin/python", "-c", IMPORTED]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.stdout.strip() or done.stderr


@pytest.fixture
def image(tmp_path: Path) -> Image:
    return Image(tmp_path)


@pytest.mark.nightly
@pytest.mark.slow
def test_it_installs_the_lock_beside_existing_packages_once(image: Image) -> None:
    image.locks("1.0")
    first = image.install("--lock", str(image.lock))
    assert first.returncode == 0, first.stderr
    stages = [line for line in first.stderr.splitlines() if line.startswith("install: ")]
    assert [stage.split()[1] for stage in stages] == ["make", "packages", "add", str(image.prefix)]
    assert image.imports() == "1.0 99.0 six"  # the lock's come first, and the desk's are there

    left = (image.prefix / "pyvenv.cfg").stat().st_mtime_ns
    again = image.install("--lock", str(image.lock))
    assert again.stderr == f"install: {image.prefix} is up to date\n"
    assert (image.prefix / "pyvenv.cfg").stat().st_mtime_ns == left

    image.locks("2.0")  # a later run's lock differs from the image's; and somebody changed the package
    wheel(image.folder, "mayfly_stub", "2.0", "VERSION = 'not what was locked'\n")
    refused = image.install("--lock", str(image.lock))
    assert refused.returncode != 0 and "DO NOT MATCH THE HASHES" in refused.stderr
    assert not (image.prefix / "mayfly-environment").exists()  # so that the next one begins anew


def test_another_script_or_no_lock_makes_another_environment(image: Image) -> None:
    assert image.install().returncode == 0
    assert "six" in subprocess.run([image.prefix / "bin/python", "-c", "import six; print(six.__name__)"],
                                   capture_output=True, text=True, check=True).stdout  # fmt: skip
    assert "up to date" in image.install().stderr
    image.script = Path(shutil.copy(SCRIPT, image.folder / "install.sh"))
    image.script.write_text(SCRIPT.read_text() + "# a later version\n")
    assert "is ready" in image.install().stderr


PYTHON, NOWHERE = ("--python", sys.executable), ("--prefix", "/nowhere/x")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ((), 2, "name --python, and an absolute --prefix"),
        (("--python", "/nowhere/python", *NOWHERE), 103, "the image has no /nowhere/python: set image_line"),
        ((*PYTHON, "--prefix", "here"), 2, "an absolute --prefix"),
        ((*PYTHON, *NOWHERE, "--lock", "/nowhere.lock"), 103, "there is no lock /nowhere.lock"),
        ((*PYTHON, *NOWHERE, "--force"), 2, "unknown argument --force"),
    ],
)
def test_it_names_what_it_lacks_and_touches_nothing(
    arguments: tuple[str, ...], code: int, words: str
) -> None:
    done = subprocess.run(["bash", str(SCRIPT), *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == code and words in done.stderr
    assert not Path("/nowhere").exists()
