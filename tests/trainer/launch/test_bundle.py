from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import zipfile
from pathlib import Path

import pytest

from trainer.base.code_files import NODE, training_sha256
from trainer.base.errors import ConfigError
from trainer.launch.bundle import LOCK, Bundle, build_bundle

# Imports every module of an unpacked bundle, as a node would, and tells what it loaded and what a checkpoint
# belongs to there.
IMPORT_ALL = """
import importlib, json, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
for path in sorted(Path(sys.argv[1], "trainer").rglob("*.py")):
    if path.match("lstm/kernels.py") or path.match("lstm/programs.py"):
        continue  # both need Triton, which comes with torch's CUDA build
    importlib.import_module(".".join(path.relative_to(sys.argv[1]).with_suffix("").parts).removesuffix(".__init__"))
from trainer.base.code_files import training_sha256
loaded = {name: getattr(module, "__file__", "") for name, module in sys.modules.items()}
ours = {name: file for name, file in loaded.items() if name.split(".")[0] in ("trainer", "infra", "tests")}
print(json.dumps({"ours": ours, "training_sha256": training_sha256(('trainer.models.lstm', 'trainer.targets.direction'))}))
"""


def package(folder: Path) -> Path:
    """Write the smallest package that a node could start."""
    for name in NODE:
        path = folder.joinpath(*name.split(".")[1:]).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        for file in (
            path,
            *(parent / "__init__.py" for parent in path.parents if parent.is_relative_to(folder)),
        ):
            file.write_text("")
    (folder / "node" / "requirements.lock").write_text("boto3==1\n")
    (folder / "node" / "prepare.lock").write_text("ccxt==1\n")
    (folder / "node" / "cluster.lock").write_text("ray==1\n")
    (folder / "node" / "search.lock").write_text("optuna==4\n")
    (folder / "node" / "volumes.sh").write_text("exit 0\n")
    (folder / "node" / "efs_client.py").write_text("")
    (folder / "node" / "agent.py").write_text("print('hello')\n")
    (folder / "_infra" / "ami").mkdir(parents=True)  # as in an installed wheel
    (folder / "_infra" / "ami" / "install.sh").write_text("#!/bin/bash\n")
    return folder


def unpack(bundle: Bundle, folder: Path) -> Path:
    with zipfile.ZipFile(io.BytesIO(bundle.content)) as wheel:
        wheel.extractall(folder)
    return folder


def test_the_same_sources_make_the_same_bytes(tmp_path):
    one, two = package(tmp_path / "one" / "trainer"), package(tmp_path / "two" / "trainer")
    os.utime(two / "__init__.py", (0, 0))
    (two / "node" / "__pycache__").mkdir()
    (two / "node" / "__pycache__" / "agent.cpython-311.pyc").write_bytes(b"x")
    assert build_bundle(one).content == build_bundle(two).content


@pytest.mark.parametrize(
    "file", ["node/agent.py", "node/requirements.lock", "train/__init__.py", "_infra/ami/install.sh"]
)
def test_one_changed_byte_is_another_bundle(tmp_path, file):
    folder = package(tmp_path / "trainer")
    before = build_bundle(folder)
    (folder / file).write_text("1 # hullo\n")
    assert build_bundle(folder).key != before.key


def test_a_file_that_no_node_runs_changes_nothing(tmp_path):
    folder = package(tmp_path / "trainer")
    before = build_bundle(folder)
    (folder / "cli").mkdir()
    (folder / "cli" / "launch.py").write_text("print('at the desk')\n")
    assert build_bundle(folder).content == before.content


def test_bundle_and_lock_are_named_by_their_hashes(tmp_path):
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


@pytest.mark.slow
def test_an_unpacked_bundle_imports_alone(tmp_path, python):
    folder = unpack(build_bundle(), tmp_path)
    command = [*python, "-P", "-c", IMPORT_ALL, str(folder)]  # with torch loaded, and nothing of ours
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    outside = {name: file for name, file in told["ours"].items() if not file.startswith(str(folder))}
    assert not outside and len(told["ours"]) == len(list(folder.rglob("*.py"))) - 2
    assert told["training_sha256"] == training_sha256(("trainer.models.lstm", "trainer.targets.direction"))


def test_own_files_lie_under_their_hash_and_change_the_bundle(tmp_path):
    place, content = package(tmp_path / "trainer"), b"class MyNet: pass\n"
    sha256 = hashlib.sha256(content).hexdigest()
    with_file = build_bundle(place, own_files={sha256: content})
    assert with_file == build_bundle(place, own_files={sha256: content}) != build_bundle(place)
    assert (
        unpack(with_file, tmp_path / "out") / "trainer" / "own_files" / f"{sha256}.py"
    ).read_bytes() == content


def test_a_bundle_follows_no_link_and_takes_no_secrets(tmp_path):
    folder, secret = package(tmp_path / "trainer"), tmp_path / "secret.py"
    secret.write_text("KEY = 1\n")
    (folder / ".env").write_text("KEY=1\n")
    (folder / "node" / ".env").write_text("KEY=1\n")
    with zipfile.ZipFile(io.BytesIO(build_bundle(folder).content)) as wheel:
        assert not [name for name in wheel.namelist() if ".env" in name]
    (folder / "node" / "agent.py").write_text("import trainer.node.linked\n")
    (folder / "node" / "linked.py").symlink_to(secret)
    with pytest.raises(ConfigError, match="node/linked.py.* is a symbolic link"):
        build_bundle(folder)
    (folder / "node" / "linked.py").unlink()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "__init__.py").write_text("")
    (folder / "node" / "linked").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="node/linked.* is a symbolic link"):
        build_bundle(folder)
