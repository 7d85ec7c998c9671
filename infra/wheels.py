"""Wheels of the functions' libraries: fetched by their hashes in requirements.lock, checked again whenever a
zip is made.

    python -m infra.wheels     # run by set-up

They lie in the environment's folder `mayfly-wheels`. Installed packages are never packed: in site-packages
nothing proves their content.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pulumi

FOLDER = Path(sys.prefix) / "mayfly-wheels"
LOCK = Path(__file__).resolve().parent.parent / "requirements.lock"
ZONES = "tzdata"  # Lambda's images may have no files of time zones
# boto3 and what it needs.
BOTO3 = ("boto3", "botocore", "s3transfer", "jmespath", "python-dateutil", "six", "urllib3")
LIBRARIES = (*BOTO3, ZONES)


def locked(distribution: str, lock: str) -> tuple[str, frozenset[str]]:
    """Return version and sha256 hashes of a distribution in a lock's text. Raises pulumi.RunError if it has
    none.
    """
    entry = re.search(
        rf"^{re.escape(distribution)}==([^\s;\\]+).*\n((?:[ \t]+--hash=.*\n?)*)", lock, re.MULTILINE
    )
    hashes = frozenset(re.findall(r"sha256:([0-9a-f]{64})", entry[2])) if entry else frozenset()
    if entry is None or not hashes:
        raise pulumi.RunError(f"{LOCK.name} has no hash of {distribution}. Run scripts/lock.")
    return entry[1], hashes


def fetch(lock: str) -> None:
    """Download the wheels that are missing, by hash. Raises pulumi.RunError if pip can't."""
    missing = [name for name in LIBRARIES if not _found(name, lock)]
    if not missing:
        return
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as wanted:
        for name in missing:
            version, hashes = locked(name, lock)
            wanted.write(
                f"{name}=={version} {' '.join(f'--hash=sha256:{sha256}' for sha256 in sorted(hashes))}\n"
            )
        wanted.flush()
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
        command += ["--no-deps", "--require-hashes", "--only-binary", ":all:", "--dest", str(FOLDER)]
        command += ["--requirement", wanted.name]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise pulumi.RunError(
            f"The functions' libraries can't be fetched: {said}. Is the package index reachable? Try again"
            " then."
        )


def files_of(distribution: str, lock: str, wanted: Callable[[str], bool]) -> dict[str, Path]:
    """Return a library's wanted files: path in the wheel -> local file, with the locked wheel's content."""
    wheel = _found(distribution, lock)
    if wheel is None:
        fetch(lock)
        wheel = _found(distribution, lock)
    if wheel is None:
        raise pulumi.RunError(
            f"There is no wheel of {distribution} with a hash of {LOCK.name} in {FOLDER}. Run `make setup`."
        )
    files = {}
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if wanted(name):
                files[name] = _laid_out(FOLDER / "unpacked" / wheel.stem / name, archive.read(name))
    return files


def _found(distribution: str, lock: str) -> Path | None:
    """Return the wheel in the folder that has one of the lock's hashes, or None."""
    version, hashes = locked(distribution, lock)
    for path in FOLDER.glob(f"{distribution.replace('-', '_')}-{version}-*.whl"):
        with path.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() in hashes:
                return path
    return None


def _laid_out(path: Path, content: bytes) -> Path:
    """Return a file with this content; other processes may write the same concurrently."""
    if not path.is_file() or path.read_bytes() != content:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as new:
            new.write(content)
        Path(new.name).replace(path)
    return path


def main(arguments: Sequence[str] = ()) -> int:
    """Fetch the wheels, for set-up."""
    try:
        fetch(LOCK.read_text(encoding="utf-8"))
    except pulumi.RunError as error:
        print(f"error: {error}", file=sys.stderr)
        return 103
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
