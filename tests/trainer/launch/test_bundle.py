from __future__ import annotations

import hashlib
import io
import os
import zipfile
from pathlib import Path

from trainer.launch.bundle import LOCK, build_bundle


def package(folder: Path) -> Path:
    (folder / "node").mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "node" / "requirements.lock").write_text("boto3==1\n")
    (folder / "node" / "agent.py").write_text("print('hello')\n")
    return folder


def test_the_same_sources_make_the_same_bytes_wherever_and_whenever(tmp_path):
    one, two = package(tmp_path / "one" / "trainer"), package(tmp_path / "two" / "trainer")
    os.utime(two / "__init__.py", (0, 0))
    (two / "node" / "__pycache__").mkdir()
    (two / "node" / "__pycache__" / "agent.cpython-311.pyc").write_bytes(b"x")
    assert build_bundle(one).content == build_bundle(two).content


def test_one_changed_byte_is_another_bundle(tmp_path):
    folder = package(tmp_path / "trainer")
    before = build_bundle(folder)
    (folder / "node" / "agent.py").write_text("print('hullo')\n")
    assert build_bundle(folder).key != before.key


def test_the_key_is_the_hash_of_the_content_and_the_lock_has_one_of_its_own(tmp_path):
    bundle = build_bundle(package(tmp_path / "trainer"))
    assert bundle.key == f"code/{hashlib.sha256(bundle.content).hexdigest()}.whl"
    assert bundle.lock_sha256 == hashlib.sha256(b"boto3==1\n").hexdigest()


def test_the_wheel_of_this_package_holds_what_a_node_starts_with():
    with zipfile.ZipFile(io.BytesIO(build_bundle().content)) as wheel:
        names = wheel.namelist()
        assert wheel.testzip() is None
    assert {"trainer/__init__.py", "trainer/node/agent.py", "trainer/train/__main__.py", LOCK} <= set(names)
    assert any(name.endswith(".dist-info/RECORD") for name in names)
    assert not any("__pycache__" in name for name in names)
