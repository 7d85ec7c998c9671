"""Environment variables: the only code of `trainer` and `infra` that reads or sets them. docs/reference.md
lists them.

Values are read when a function is called, never at import. Exceptions: shell files, and the sweeper
(control/functions/sweep.py), which imports almost nothing of ours. Standard library only.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from trainer.base.errors import UsageError

# Of the region, in the order in which AWS's tools and Pulumi's provider read them.
REGION_VARIABLES = ("AWS_REGION", "AWS_DEFAULT_REGION")
VISIBLE_GPUS = "CUDA_VISIBLE_DEVICES"
# Which features of this machine's processor numeric libraries use; read once when one is loaded.
PROCESSOR_SETTINGS = (
    *("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE", "NPY_DISABLE_CPU_FEATURES"),
    *("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA"),
)


def rehearsal_home() -> Path:
    """Return the folder of this desk's embedded AWS: in the platform's data folder, never inside a
    repository.
    """
    if named := _path("MAYFLY_HOME"):
        return named.absolute()  # processes of ours work in other folders
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "mayfly"
    return _xdg_folder("XDG_DATA_HOME", ".local/share")


def keys_folder() -> Path:
    """Return the folder of the SSH keys of this desk's runs; it may not exist."""
    return rehearsal_home() / "keys"


def terminal_kind() -> str:
    """Return the kind of this process's terminal, by terminfo's name."""
    return os.environ.get("TERM") or "xterm"


def own_access_key() -> str:
    """Return the AWS access key of the environment; empty without one."""
    return os.environ.get("AWS_ACCESS_KEY_ID", "")


def aws_region() -> tuple[str, str]:
    """Return the variable that names the AWS region, and its value; two empty texts without one."""
    return next(((name, os.environ[name]) for name in REGION_VARIABLES if os.environ.get(name)), ("", ""))


def stale_aws_variables(kept: Collection[str]) -> list[str]:
    """Return the AWS variables of the environment that conflict with a rehearsal: all but those kept and
    those about output.
    """
    harmless = ("AWS_PAGER", "AWS_DEFAULT_OUTPUT")
    names = [name for name in os.environ if name.startswith("AWS_") and not name.startswith("AWS_CLI_")]
    return sorted(name for name in names if name not in harmless and name not in kept)


def without_proxy(host: str) -> dict[str, str]:
    """Return the variables by which programs of a shell reach a host without a proxy; others keep theirs."""
    others = {name: os.environ.get(name, "").split(",") for name in ("NO_PROXY", "no_proxy")}
    return {
        name: ",".join([host, *(one for one in hosts if one not in ("", host))])
        for name, hosts in others.items()
    }


@dataclass(frozen=True, kw_only=True)
class RehearsalEnvironment:
    """Settings of the embedded AWS: how it starts nodes, and where it stores applied programs."""

    fresh_nodes: bool
    programs: Path
    fork_server: Path | None  # None: one of its own


def rehearsal_environment() -> RehearsalEnvironment:
    """Return the settings of the embedded AWS's process from the desk's environment.

    Applied programs are not kept in MAYFLY_HOME, which may be inside a repository: they are replayed, so they
    must be trusted.
    """
    return RehearsalEnvironment(
        fresh_nodes=os.environ.get("MAYFLY_REHEARSAL_NODES") == "fresh",
        programs=_path("MAYFLY_PROGRAMS") or _caches() / "programs",
        fork_server=_path("MAYFLY_FORK_SERVER"),
    )


def uploads_folder() -> Path:
    """Return the folder of the journals of uploads that were broken off; it may not exist."""
    return _caches() / "uploads"


def _caches() -> Path:
    return _xdg_folder("XDG_CACHE_HOME", ".cache")


def rehearses() -> bool:
    """Return whether commands rehearse without --rehearse. Raises UsageError for a senseless value."""
    value = os.environ.get("MAYFLY_REHEARSE", "")
    if value not in ("", "0", "1"):
        why, do = "it is 1, 0 or empty", "export MAYFLY_REHEARSE=1, or unset it."
        raise UsageError(f"MAYFLY_REHEARSE is '{value}'", why=why, do=do)
    return value == "1"


def local_folder() -> Path | None:
    """Return the user's folder of candles and models, which may not exist; None if they named none."""
    return _path("MAYFLY_LOCAL")


def profiles_file() -> Path:
    """Return the user's file of GPU profiles; it may not exist."""
    return _path("MAYFLY_PROFILES") or Path.home() / ".config" / "mayfly" / "gpu_profiles.toml"


def defaults_file() -> Path:
    """Return the user's file of defaults; it may not exist."""
    return _xdg_folder("XDG_CONFIG_HOME", ".config") / "defaults.toml"


def gpu_profile() -> str:
    """Return the name of the GPU profile to train by; empty without one."""
    return os.environ.get("GPU_PROFILE", "")


def visible_gpus() -> str | None:
    """Return CUDA's list of visible GPUs; None if it is not set, which differs from empty."""
    return os.environ.get(VISIBLE_GPUS)


def terminal_is_dumb() -> bool:
    """Return whether the terminal can't move its cursor."""
    return os.environ.get("TERM") == "dumb"


def colours_refused() -> bool:
    """Return whether the user wants no colours (https://no-color.org: present, whatever its value)."""
    return "NO_COLOR" in os.environ


def has_screen() -> bool:
    """Return whether a browser with windows may be opened: on Linux a display has a variable."""
    return sys.platform == "darwin" or any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")))


@dataclass(frozen=True, kw_only=True)
class AgentEnvironment:
    """Variables that bootstrap.sh, and in a rehearsal the embedded AWS, set for the agent."""

    work: Path
    bucket: str
    booted_at: datetime  # UTC
    region: str
    endpoint_url: str | None
    metadata_endpoint: str
    rehearsal: bool
    cache: Path | None = None  # where the cache is mounted
    cache_failed: str = ""  # why it is not, where the stack has one
    boot_stages: tuple[datetime, ...] = ()  # times at which code and environment were ready
    baked: bool = False  # whether the image had the environment
    here: Path | None = None  # of a machine of the caller's own: the file that names the run
    folder: Path | None = None  # instead of a bucket


def agent_environment() -> AgentEnvironment:
    """Return the agent's variables. Raises KeyError for one that bootstrap.sh did not set."""
    stages = os.environ.get("MAYFLY_BOOT_STAGES", "").split()
    return AgentEnvironment(
        work=Path(os.environ["MAYFLY_WORK"]),
        bucket=os.environ["MAYFLY_BUCKET"],
        booted_at=datetime.fromtimestamp(float(os.environ["MAYFLY_BOOTED_AT"]), timezone.utc),
        region=os.environ["AWS_REGION"],
        endpoint_url=os.environ.get("AWS_ENDPOINT_URL"),
        metadata_endpoint=os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://169.254.169.254"),
        rehearsal="MAYFLY_ROOT" in os.environ,
        cache=_path("MAYFLY_CACHE"),
        cache_failed=os.environ.get("MAYFLY_CACHE_FAILED", ""),
        boot_stages=tuple(datetime.fromtimestamp(float(at), timezone.utc) for at in stages[:2]),
        baked=stages[2:] == ["1"],
        here=_path("MAYFLY_HERE"),
        folder=_path("MAYFLY_FOLDER"),
    )


@dataclass(frozen=True, kw_only=True)
class FunctionEnvironment:
    """Variables that the stack sets for its control function."""

    project: str
    stack: str


def function_environment() -> FunctionEnvironment:
    """Return the stack of a function. Raises KeyError for a variable that the stack did not set."""
    return FunctionEnvironment(project=os.environ["PROJECT"], stack=os.environ["STACK"])


def clock_ahead_seconds() -> int:
    """Return the seconds by which this node's clock is ahead of its machine's; 0 except in a rehearsal that
    skipped time.
    """
    return int(os.environ.get("MAYFLY_CLOCK_AHEAD", "0"))


def for_agent(variables: Mapping[str, str], *, code: Path) -> dict[str, str]:
    """Return the environment of an agent on the caller's own machine: theirs, with its variables, `code`
    first on the path.

    Mayfly's own variables are left out: a rehearsal's would turn it into a rehearsal's node.
    """
    own = (
        ("MAYFLY_", "AWS_") if "AWS_ACCESS_KEY_ID" in variables else ("MAYFLY_",)
    )  # a rehearsal has its keys
    ours = {"PYTHONPATH": _python_path(str(code)), "PYTHONUNBUFFERED": "1", "PYTHONSAFEPATH": "1"}
    return {**_without_prefixes(*own), **ours, **variables}


def temporary_folder() -> Path:
    """Return the folder for temporary files, by this process's own environment: a fork may remember
    another's.
    """
    return Path(os.environ.get("TMPDIR") or tempfile.gettempdir())


def variables_named(names: Collection[str]) -> dict[str, str]:
    """Return those of these variables that are set: secrets of a script on the caller's own machine."""
    return {name: os.environ[name] for name in names if name in os.environ}


def here_folder() -> Path:
    """Return the folder of the runs on this machine."""
    return rehearsal_home() / "here"


def for_program(variables: Mapping[str, str], *, profiles: Path) -> dict[str, str]:
    """Return the environment of a node's program: the agent's with its own variables, secrets among them, and
    the node's file instead of a user's profiles.
    """
    return {**os.environ, "MAYFLY_PROFILES": str(profiles), **variables}


def without(names: Collection[str]) -> dict[str, str]:
    """Return this process's environment without these variables, such as secrets."""
    return {name: value for name, value in os.environ.items() if name not in names}


def notice_file() -> Path | None:
    """Return the file in which this machine says that it is about to be taken away; None where none is
    named.
    """
    return _path("MAYFLY_NOTICE")


@dataclass(frozen=True, kw_only=True)
class RankEnvironment:
    """Variables of one rank: torchrun's, and the socket of the supervisor."""

    socket: str
    rank: int
    local_rank: int
    count: int
    restart: int
    nodes: int = 1


def rank_environment() -> RankEnvironment:
    """Return the place of this rank. Raises KeyError if torchrun did not start it."""
    return RankEnvironment(
        socket=os.environ["MAYFLY_RANKS"],
        rank=int(os.environ["RANK"]),
        local_rank=int(os.environ["LOCAL_RANK"]),
        count=int(os.environ["WORLD_SIZE"]),
        restart=int(os.environ["TORCHELASTIC_RESTART_COUNT"]),
        nodes=int(os.environ["GROUP_WORLD_SIZE"]),
    )


def for_ranks(socket: Path, *, gpus: Sequence[int] = (), interface: str = "") -> dict[str, str]:
    """Return the environment of torchrun: this process's, with every connection between ranks on loopback, or
    on the `interface` to other machines.

    `gpus`: the numbers of those that its ranks see, if not all that are visible here.
    torchrun itself has NCCL end a rank whose collective failed, and torch records the last 2,000 collectives,
    which a rank that is asked writes to the log (torch 2.13, measured 2026-11-24).
    """
    loopback = "lo0" if sys.platform == "darwin" else "lo"
    ours = {"MAYFLY_RANKS": str(socket), "OMP_NUM_THREADS": "1"}
    ours |= dict.fromkeys(("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"), interface or loopback)
    ours |= {"TORCH_NCCL_DUMP_ON_TIMEOUT": "0"}  # the recorder's own dump is a pickle
    if gpus:
        here = visible_gpus()
        names = here.split(",") if here is not None else []
        ours[VISIBLE_GPUS] = ",".join(names[gpu] if names else str(gpu) for gpu in gpus)
    return {**os.environ, **ours}


def ray_token_file() -> Path | None:
    """Return the file of the token that Ray's nodes of one attempt share; None where none is named."""
    return _path("RAY_AUTH_TOKEN_PATH")


def for_ray(variables: Mapping[str, str], *, code: Path) -> dict[str, str]:
    """Return the environment of Ray's processes: this one's with these variables and the token's file as the
    only ones of Ray, `code` first on the path.
    """
    token = variables_named(("RAY_AUTH_TOKEN_PATH",))
    ours = {"PYTHONPATH": _python_path(str(code)), "PYTHONUNBUFFERED": "1"}
    return {**_without_prefixes("RAY_"), **ours, **token, **variables}


def processor_settings() -> dict[str, str]:
    """Return those of PROCESSOR_SETTINGS that are set: nodes of a rehearsal and scripts run on the same
    processor.
    """
    return variables_named(PROCESSOR_SETTINGS)


def for_script(variables: Mapping[str, str], *, path: str) -> dict[str, str]:
    """Return the environment of a user's script: its variables, with `path` before the PATH; of the agent's,
    only the PATH, LANG, LD_LIBRARY_PATH and the processor's settings.
    """
    kept = variables_named(("LANG", "LD_LIBRARY_PATH"))
    paths = os.pathsep.join(
        dict.fromkeys(f"{path}{os.pathsep}{os.environ.get('PATH', os.defpath)}".split(os.pathsep))
    )
    ours = {"LANG": "C.UTF-8", "PYTHONUNBUFFERED": "1"}
    return {**ours, **kept, **processor_settings(), **variables, "PATH": paths}


def for_resolver() -> dict[str, str]:
    """Return the environment of a package resolver: the desk's, without settings of pip or uv that change its
    result.
    """
    kept = _without_prefixes("UV_", "PIP_", "VIRTUAL_", "CONDA_")
    return {**kept, "UV_HTTP_TIMEOUT": "20", "UV_HTTP_RETRIES": "1"}


def for_tracker(*, source: str) -> dict[str, str]:
    """Return the environment of a process that writes to the user's tracker: the desk's, with no telemetry
    and short patience unless the user has set these. `source` comes first on the path, and the current folder
    is not on it: a file there may be called mlflow.py.
    """
    ours = {
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3",  # instead of 7, which take four minutes
        "MLFLOW_HTTP_REQUEST_TIMEOUT": "60",
        "WANDB_ERROR_REPORTING": "false",
        "WANDB_SILENT": "true",
    }
    return {**ours, **os.environ, "PYTHONPATH": _python_path(source), "PYTHONSAFEPATH": "1"}


def mlflow_places() -> tuple[str, str, str]:
    """Return MLflow's server, and the id and the name of the experiment that its variables choose; empty
    without one.
    """
    server, number, name = map(
        os.environ.get, ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_ID", "MLFLOW_EXPERIMENT_NAME")
    )
    return server or "", number or "", name or ""


def image_python() -> str:
    """Return the Python that has the image's torch; in a rehearsal the desk's own, and no fork."""
    in_a_rehearsal = os.environ.get("MAYFLY_REAL_PYTHON") or os.environ.get("MAYFLY_DESK_PYTHON")
    return in_a_rehearsal or "/opt/pytorch/bin/python"


def for_embedded_aws(*, source: str) -> dict[str, str]:
    """Return the environment of the embedded AWS's process: the desk's without credentials, AWS profile and
    endpoints.

    `source` is the folder that this package is imported from; it comes first on the path.
    """
    return {**_without_prefixes("AWS_"), "PYTHONPATH": _python_path(source)}


def _xdg_folder(name: str, default: str) -> Path:
    """Return Mayfly's folder in a base folder of https://specifications.freedesktop.org/basedir-spec, which
    ignores a variable with a relative path (looked up 2026-11-22).
    """
    base = Path(os.environ.get(name) or "")
    return (base if base.is_absolute() else Path.home() / default) / "mayfly"


def _path(name: str) -> Path | None:
    named = os.environ.get(name)
    return Path(named) if named else None


def _without_prefixes(*prefixes: str) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(prefixes)}


def _python_path(first: str) -> str:
    return os.pathsep.join(filter(None, (first, os.environ.get("PYTHONPATH"))))


def set_variables(variables: Mapping[str, str]) -> None:
    """Set the variables of a job for the trainer, and for the processes that it starts."""
    os.environ.update(variables)


def set_cublas_workspace(size: str) -> None:
    """Set cuBLAS's workspace for this process, unless the user has; it is read at the first matrix
    product.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", size)


def set_spin_count(loops: int) -> None:
    """Set the spin time of idle OpenMP threads in new processes, unless the user has set a wait policy."""
    if not any(name in os.environ for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")):
        os.environ["GOMP_SPINCOUNT"] = str(loops)


def set_moto_images(path: Path) -> None:
    """Set moto's file of machine images, which it reads when it is imported."""
    os.environ["MOTO_AMIS_PATH"] = str(path)
