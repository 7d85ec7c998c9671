"""Set up .venv: torch from the best source, everything else from requirements.lock, this checkout as an
editable package.

Whatever is installed has a hash in a lock: torch's CPU builds for Linux in requirements-cpu.lock, PyPI's
builds in requirements.lock, what PyPI's needs on Linux in requirements-cuda.lock. scripts/lock writes all
three.

    scripts/setup              # finds a Python and runs this file; standard library only

A second run sees the lock's hash in .venv and installs nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv"
WHEELS = VENV / "example-wheels"  # that the test of examples/scripts takes instead of a package index
CPU_INDEX = (  # PyTorch's own index of CPU builds, for Linux x86_64 and aarch64
    "https://download.pytorch.org/whl/cpu"
)
NEEDED_GIB = (
    3.0  # .venv takes 2.1 GiB with the CPU build of torch (measured 2026-11-22), pip's cache some more
)
NEEDED_CUDA_GIB = 9.0
LOCK, CPU_LOCK, CUDA_LOCK = "requirements.lock", "requirements-cpu.lock", "requirements-cuda.lock"
LOCKS = (LOCK, CPU_LOCK, CUDA_LOCK)
# What a prepare run has, and of it what `mayfly data fetch` needs here besides LOCK. ccxt pins versions of
# packages that others share, so it is in no lock of the desk, and its own pins of those are left out.
FETCH_LOCK = "trainer/node/prepare.lock"
# Of ccxt's asynchronous and signing halves, which nothing here imports.
NOT_FETCHED = (
    "aio",
    "coincurve",
    "frozenlist",
    "multidict",
    "orjson",
    "propcache",
    "uvloop",
    "yarl",
    "zlib-ng",
)
# Bytecode that nobody loads: packages' tests, and all of pulumi_aws (119 MB of 390) but the services that
# infra/ names; of ccxt what we do not import.
NOT_COMPILED = r"/tests/|/ccxt/(async_support|pro)/|"
NOT_COMPILED += r"/pulumi_aws/(?!(cloudwatch|config|ec2|iam|lambda_|s3|scheduler|ssm)/)[a-z0-9_]+/"


@dataclass(frozen=True, kw_only=True)
class TorchSource:
    """A source of torch: texts for the user, the lock with its hashes, and pip's arguments for the index."""

    name: str
    size: str
    lock: str  # '': torch comes with everything else
    index: tuple[str, ...] = ()
    needed_gib: float = NEEDED_GIB


def torch_source(
    version: str,
    *,
    system: str,
    machine: str,
    wish: str,
    ready: Callable[[str], str | None],
    reachable: Callable[[str], bool],
) -> TorchSource:
    """Choose torch's source: a CPU build that pip finds locally, else PyTorch's CPU index, else PyPI.

    `ready(version)` returns the size of a build that pip finds without any index, if its hash is locked, else
    None. `wish` is MAYFLY_TORCH: '' for this order, or 'pypi' for PyPI's build, which on Linux is the CUDA
    one.
    """
    if wish not in ("", "pypi"):
        raise SystemExit(
            f"error: MAYFLY_TORCH is '{wish}'. Leave it empty (CPU build) or set it to pypi (CUDA build on"
            " Linux)."
        )
    if not wish and (size := ready(version)):
        return TorchSource(name="a wheel on this machine", size=size, lock=CPU_LOCK, index=("--no-index",))
    if not wish and system == "Linux" and machine in ("x86_64", "aarch64") and reachable(CPU_INDEX):
        return TorchSource(
            name=f"PyTorch's CPU index ({CPU_INDEX})",
            size="about 0.2 GB",
            lock=CPU_LOCK,
            index=("--index-url", CPU_INDEX),
        )
    if system == "Linux":
        return TorchSource(
            name="PyPI (the CUDA build)",
            size="about 2.7 GB with CUDA",
            lock=CUDA_LOCK,
            needed_gib=NEEDED_CUDA_GIB,
        )
    return TorchSource(name="PyPI", size="about 0.1 GB", lock="")


def locked_version(lock_text: str, package: str) -> str:
    """Return the version that the lock pins."""
    match = re.search(rf"^{re.escape(package)}==([^\s;\\]+)", lock_text, re.MULTILINE)
    if match is None:
        raise SystemExit(f"error: requirements.lock does not pin {package}. Run scripts/lock.")
    return match.group(1)


def ready_build(python: Path, version: str, hashes: str) -> str | None:
    """Return the size of the torch wheel that pip finds with --no-index, as text, if `hashes` has its sha256;
    else None.
    """
    command = [
        str(python),
        "-m",
        "pip",
        "install",
        "--dry-run",
        "--no-index",
        "--no-deps",
        "--ignore-installed",
        "--quiet",
    ]
    found = subprocess.run(
        [*command, "--report", "-", f"torch=={version}"], capture_output=True, text=True, check=False
    )
    if found.returncode != 0:
        return None
    download = json.loads(found.stdout)["install"][0]["download_info"]
    if download.get("archive_info", {}).get("hashes", {}).get("sha256", "none") not in hashes:
        print(f"{download['url']} is not used: {CPU_LOCK} does not have its sha256.", file=sys.stderr)
        return None
    url: str = download["url"]
    wheel = Path(urllib.request.url2pathname(url.removeprefix("file://")))
    return f"{wheel.stat().st_size / 1e9:.1f} GB" if wheel.is_file() else "size unknown"


def index_reachable(url: str) -> bool:
    """Return whether the index answers within five seconds."""
    try:
        with urllib.request.urlopen(f"{url}/torch/", timeout=5):
            return True
    except (urllib.error.URLError, OSError):
        return False


def missing(*, venv_works: bool, free_gib: float, needed_gib: float, version: tuple[int, int]) -> str | None:
    """Return a line that names what this machine lacks and the remedy, or None."""
    if not venv_works:
        package = f"python{version[0]}.{version[1]}-venv"
        return (
            f"Python's venv module is missing. Install it (Debian, Ubuntu: sudo apt-get install {package})"
            " and run make again."
        )
    if free_gib < needed_gib:
        return (
            f"{free_gib:.1f} GB are free here, .venv needs {needed_gib:.0f} GB. Free some, or clone to a"
            " larger disk."
        )
    return None


def stop_if_missing(needed_gib: float) -> None:
    """Exit 103 with one line when the venv module or the disk falls short."""
    venv_works = (
        subprocess.run(
            [sys.executable, "-c", "import ensurepip, venv"], capture_output=True, check=False
        ).returncode
        == 0
    )
    free_gib = shutil.disk_usage(ROOT).free / 2**30
    line = missing(
        venv_works=venv_works, free_gib=free_gib, needed_gib=needed_gib, version=sys.version_info[:2]
    )
    if line:
        print(f"error: {line}", file=sys.stderr)
        raise SystemExit(103)


def pip(python: Path, *arguments: str) -> None:
    """Run pip install quietly; if it fails, leave its messages on stderr and exit with 103."""
    command = [
        str(python),
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-compile",
        *arguments,
    ]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        print(result.stderr.strip(), file=sys.stderr)
        print(
            f"error: pip install {' '.join(arguments)} failed. Is the package index reachable? Then run make"
            " setup again.",
            file=sys.stderr,
        )
        raise SystemExit(103)


def example_wheels(locks: Iterable[str], known: str) -> str:
    """Return the requirements of the examples' locks that `known` (requirements.lock) lacks, as the text of
    one lock.
    """
    entry = re.compile(r"^([A-Za-z0-9._-]+==[^\s;\\]+).*\n(?:[ \t]+--hash=.*\n?)*", re.MULTILINE)
    there = {match[1] for match in entry.finditer(known)}
    wanted = {match[1]: match[0] for lock in locks for match in entry.finditer(lock) if match[1] not in there}
    return "".join(wanted[name] for name in sorted(wanted))


def packages_besides(lock: str, known: str) -> str:
    """Return the entries of a lock whose packages `known` has in no version, without those of NOT_FETCHED."""
    entry = re.compile(r"^([A-Za-z0-9._-]+)==[^\s;\\]+.*\n(?:[ \t]+--hash=.*\n?)*", re.MULTILINE)
    there = {match[1] for match in entry.finditer(known)}
    wanted = (match for match in entry.finditer(lock) if match[1] not in there)
    return "".join(match[0] for match in wanted if not match[1].startswith(NOT_FETCHED))


def fetch_example_wheels(python: Path) -> None:
    """Fetch the wheels of examples/scripts, once, for their test; without an index, that test is skipped."""
    locks = [path.read_text() for path in sorted((ROOT / "examples" / "scripts").glob("*/requirements.txt"))]
    wanted = example_wheels(locks, (ROOT / LOCK).read_text())
    state, marker = hashlib.sha256(wanted.encode()).hexdigest(), WHEELS / "mayfly-setup"
    if marker.is_file() and marker.read_text().split() in ([state], [state, "failed"]):
        return
    print("Wheels of examples/scripts, for their test: about 30 MB.", file=sys.stderr)
    shutil.rmtree(WHEELS, ignore_errors=True)
    WHEELS.mkdir()
    (WHEELS / "requirements.txt").write_text(wanted)
    command = [
        str(python),
        "-m",
        "pip",
        "download",
        "--quiet",
        "--disable-pip-version-check",
        "--retries",
        "1",
        "--timeout",
        "10",
    ]
    command += [
        "--no-deps",
        "--require-hashes",
        "--only-binary",
        ":all:",
        "-d",
        str(WHEELS),
        "-r",
        str(WHEELS / "requirements.txt"),
    ]
    fetched = subprocess.run(command, capture_output=True, text=True, check=False).returncode == 0
    if not fetched:
        print(
            f"They could not be fetched: that test is skipped. To try again, remove {WHEELS}.",
            file=sys.stderr,
        )
    marker.write_text(state if fetched else f"{state} failed")


def compile_bytecode(python: Path) -> None:
    """Compile the installed packages on all cores: 40 s of CPU; pip takes 62 on one core for all of them
    (2026-11-22).

    Where PYTHONDONTWRITEBYTECODE is set, uncompiled packages would cost each process 11 s. Some packages
    carry files of another Python: those are left out.
    """
    command = [str(python), "-m", "compileall", "-q", "-j", "0", "-x", NOT_COMPILED, str(VENV / "lib")]
    subprocess.run(command, capture_output=True, check=False)


def begin_compiling_tests(python: Path) -> subprocess.Popen[bytes]:
    """Have pytest compile its tests once, while this process fetches the last wheels: in a new clone each
    worker of `make test` would compile all of them, in 12 s of CPU (2026-11-27).
    """
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [str(python), "-m", "pytest", "--collect-only", "-q", "-p", "no:xdist"]
    silent = subprocess.DEVNULL
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=silent, stderr=silent)


def main() -> None:
    """Bring .venv to what the locks say."""
    locks = {name: (ROOT / name).read_bytes() for name in (*LOCKS, FETCH_LOCK)}
    wish = os.environ.get("MAYFLY_TORCH", "")
    state = hashlib.sha256(
        b"".join(locks.values()) + (ROOT / "pyproject.toml").read_bytes() + str(VENV).encode()
    ).hexdigest()
    marker = VENV / "mayfly-setup"
    if marker.is_file() and marker.read_text() == state:
        fetch_example_wheels(VENV / "bin" / "python")
        return
    stop_if_missing(NEEDED_GIB)
    print(
        f"Setting up .venv with Python {platform.python_version()} (once, one to four minutes).",
        file=sys.stderr,
    )
    python = VENV / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
    version = locked_version(locks[LOCK].decode(), "torch")
    source = torch_source(
        version,
        system=platform.system(),
        machine=platform.machine(),
        wish=wish,
        ready=lambda wanted: ready_build(python, wanted, locks[CPU_LOCK].decode()),
        reachable=index_reachable,
    )
    stop_if_missing(source.needed_gib)
    print(f"torch {version} from {source.name}: {source.size}.", file=sys.stderr)
    hashed = ("--no-deps", "--require-hashes")
    if source.lock:
        pip(python, *hashed, *source.index, "-r", str(ROOT / source.lock))
    print("Everything else from requirements.lock: about 0.4 GB.", file=sys.stderr)
    pip(python, *hashed, "-r", str(ROOT / LOCK))
    more = VENV / "fetch-requirements.txt"
    more.write_text(packages_besides(locks[FETCH_LOCK].decode(), locks[LOCK].decode()))
    pip(python, *hashed, "-r", str(more))
    pip(python, "--no-deps", "--no-build-isolation", "-e", str(ROOT))
    compile_bytecode(python)
    compiling = begin_compiling_tests(python)
    # The functions' zips are packed from these wheels, not from the installed packages.
    if subprocess.run([str(python), "-m", "infra.wheels"], cwd=ROOT, check=False).returncode:
        raise SystemExit(103)
    marker.write_text(state)
    fetch_example_wheels(python)
    compiling.wait()


if __name__ == "__main__":
    main()
