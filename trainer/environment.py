"""Environment variables: their table, and the only code of `trainer` and `infra` that reads or sets them.

Values are read when a function is called, never at import. Exceptions: shell files, and the sweeper (control/sweep.py), which
imports almost nothing of ours. Standard library only.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

YOU = "you"


@dataclass(frozen=True, kw_only=True)
class Variable:
    """One variable: who sets it, what it means, and what holds without it. docs/environment.md shows these words."""

    name: str
    set_by: str
    meaning: str
    default: str = ""


VARIABLES = (
    Variable(
        name="MAYFLY_HOME",
        set_by=YOU,
        meaning="folder of the embedded AWS, and in `keys/` of running machines' SSH keys; for you alone",
        default="`mayfly` in XDG_DATA_HOME",
    ),
    Variable(
        name="XDG_DATA_HOME",
        set_by=YOU,
        meaning="folder of programs' own data",
        default="`~/.local/share`; `~/Library/Application Support` on macOS",
    ),
    Variable(
        name="MAYFLY_PROFILES",
        set_by=YOU,
        meaning="your file of GPU profiles; measurements are kept beside it. On a node the agent sets it.",
        default="`~/.config/mayfly/gpu_profiles.toml`",
    ),
    Variable(
        name="MAYFLY_REHEARSAL_NODES",
        set_by=YOU,
        meaning="`fresh`: a rehearsal starts each Python of a node anew, as a machine would; slower",
        default="forks of one Python that has torch loaded",
    ),
    Variable(
        name="MAYFLY_PROGRAMS",
        set_by=YOU,
        meaning="folder of rehearsals' applied Pulumi programs and unpacked functions, by hash; yours alone to write",
        default="`mayfly/programs` in XDG_CACHE_HOME",
    ),
    Variable(
        name="MAYFLY_LOCAL",
        set_by=YOU,
        meaning="your folder of candles and models, where the stack's `storage` is `local`",
        default="`~/mayfly`",
    ),
    Variable(name="XDG_CACHE_HOME", set_by=YOU, meaning="folder of caches", default="`~/.cache`"),
    Variable(
        name="MAYFLY_FORK_SERVER",
        set_by=YOU,
        meaning="socket of a fork server that several rehearsals share, as the tests do",
        default="one for each embedded AWS",
    ),
    Variable(name="GPU_PROFILE", set_by=YOU, meaning="GPU profile of a training at a desk", default="the GPU's own profile"),
    Variable(
        name="DATA",
        set_by=YOU,
        meaning="folder of candles for `make demo`; read by scripts/demo",
        default="the demo's candles",
    ),
    Variable(
        name="MAYFLY_TORCH",
        set_by=YOU,
        meaning="`pypi`: `make setup` installs torch's CUDA build on Linux; read by scripts/setup.py",
        default="the CPU build",
    ),
    Variable(name="AWS_PROFILE", set_by=YOU, meaning="AWS credentials by name; read by boto3", default="as boto3 finds them"),
    Variable(name="AWS_ACCESS_KEY_ID", set_by=YOU, meaning="AWS credentials; read by boto3", default="as boto3 finds them"),
    Variable(name="AWS_SECRET_ACCESS_KEY", set_by=YOU, meaning="AWS credentials; read by boto3", default="as boto3 finds them"),
    Variable(
        name="AWS_REGION",
        set_by=YOU,
        meaning="AWS region; read by boto3, and by the agent, for whom bootstrap.sh sets it",
        default="as boto3 finds it",
    ),
    Variable(
        name="AWS_ENDPOINT_URL",
        set_by=YOU,
        meaning="endpoint of another AWS, such as `mayfly rehearse --env` prints; read by boto3, and by the agent",
        default="Amazon's",
    ),
    Variable(name="AWS_PAGER", set_by=YOU, meaning="pager of AWS's CLI, which `mayfly rehearse --env` leaves as it is"),
    Variable(
        name="AWS_DEFAULT_OUTPUT", set_by=YOU, meaning="format of AWS's CLI, which `mayfly rehearse --env` leaves as it is"
    ),
    Variable(
        name="NO_PROXY",
        set_by=YOU,
        meaning="hosts that are reached without a proxy, also spelled no_proxy; `mayfly rehearse --env` adds its own",
        default="all by the proxy",
    ),
    Variable(name="CUDA_VISIBLE_DEVICES", set_by=YOU, meaning="GPUs to see, by number; empty or -1: none", default="all"),
    Variable(
        name="CUBLAS_WORKSPACE_CONFIG",
        set_by=YOU,
        meaning="workspace of cuBLAS; a recurrent model on a GPU gives the same numbers twice only with one",
        default="`:4096:2` in a training on an NVIDIA GPU",
    ),
    Variable(name="OMP_WAIT_POLICY", set_by=YOU, meaning="how idle OpenMP threads wait", default="see GOMP_SPINCOUNT"),
    Variable(name="KMP_BLOCKTIME", set_by=YOU, meaning="how idle OpenMP threads wait (Intel's)", default="see GOMP_SPINCOUNT"),
    Variable(
        name="GOMP_SPINCOUNT",
        set_by=YOU,
        meaning="for how many loops an idle OpenMP thread waits awake",
        default="`1000` for workers on a CPU, unless one of the two above is set",
    ),
    Variable(
        name="NO_COLOR",
        set_by=YOU,
        meaning="set to anything: plain lines on a terminal, no colours and nothing that is redrawn",
        default="colours",
    ),
    Variable(
        name="TERM", set_by=YOU, meaning="`dumb`: as with NO_COLOR; kind of the terminal that `mayfly attach` gives a machine"
    ),
    Variable(name="MAYFLY_BUCKET", set_by="bootstrap.sh", meaning="the stack's bucket, for the agent"),
    Variable(name="MAYFLY_WORK", set_by="bootstrap.sh", meaning="folder that the agent works in"),
    Variable(
        name="MAYFLY_HERE",
        set_by="`mayfly agent`",
        meaning="file that says which run an agent on a machine of yours works for",
        default="instance metadata says it",
    ),
    Variable(
        name="MAYFLY_FOLDER",
        set_by="`mayfly agent`",
        meaning="folder in the place of the bucket, for an agent with `--local`",
        default="a bucket",
    ),
    Variable(name="MAYFLY_CACHE", set_by="bootstrap.sh", meaning="folder where the cache is mounted", default="no cache"),
    Variable(name="MAYFLY_CACHE_FAILED", set_by="bootstrap.sh", meaning="why the cache could not be mounted"),
    Variable(name="MAYFLY_BOOTED_AT", set_by="bootstrap.sh", meaning="when user data began, in seconds of the epoch"),
    Variable(
        name="MAYFLY_BOOT_STAGES",
        set_by="bootstrap.sh",
        meaning="when the code was there and when its environment, in seconds of the epoch, and 1 where the image had that",
    ),
    Variable(
        name="MAYFLY_ROOT", set_by="the embedded AWS", meaning="sandbox of a node in a rehearsal", default="an EC2 instance"
    ),
    Variable(
        name="AWS_EC2_METADATA_SERVICE_ENDPOINT",
        set_by="the embedded AWS",
        meaning="instance metadata of a node in a rehearsal",
        default="`http://169.254.169.254`",
    ),
    Variable(name="MAYFLY_DESK_PYTHON", set_by="the embedded AWS", meaning="Python of the desk, for bootstrap.sh"),
    Variable(name="MAYFLY_REAL_PYTHON", set_by="the embedded AWS", meaning="Python behind the one that forks, for a node"),
    Variable(name="MAYFLY_FORK_SOCKET", set_by="the embedded AWS", meaning="socket of a node's own fork server"),
    Variable(name="MAYFLY_FORK_CLIENT", set_by="the embedded AWS", meaning="script that orders a fork, for a node's Python"),
    Variable(name="MAYFLY_REHEARSAL_GPUS", set_by="the embedded AWS", meaning="GPUs of the type, for the nvidia-smi stub"),
    Variable(name="MAYFLY_INSTANCE", set_by="the embedded AWS", meaning="instance id, a mark on each process of a node"),
    Variable(name="MAYFLY_INSTANCE_TYPE", set_by="the embedded AWS", meaning="instance type of a node"),
    Variable(
        name="MAYFLY_CLOCK_AHEAD",
        set_by="the embedded AWS",
        meaning="seconds by which a node's clock is ahead of this machine's: a rehearsal may skip time",
        default="`0`",
    ),
    Variable(name="MOTO_AMIS_PATH", set_by="the embedded AWS", meaning="machine images for moto, which reads it at import"),
    Variable(name="MAYFLY_DATA", set_by="the agent", meaning="folder of a script's data; docs/scripts.md"),
    Variable(name="MAYFLY_OUT", set_by="the agent", meaning="folder whose files are uploaded while a script runs"),
    Variable(
        name="MAYFLY_CHECKPOINTS", set_by="the agent", meaning="folder that a script finds again when it is started again"
    ),
    Variable(name="MAYFLY_EVENTS", set_by="the agent", meaning="file that a script appends its events to"),
    Variable(name="MAYFLY_DEVICES", set_by="the agent", meaning="number of GPUs that a script may use"),
    Variable(name="PYTHONUNBUFFERED", set_by="the agent", meaning="a script's lines are in the log as they are printed"),
    Variable(name="UV_HTTP_TIMEOUT", set_by="Mayfly", meaning="for uv, which resolves scripts' packages: seconds to answer"),
    Variable(name="UV_HTTP_RETRIES", set_by="Mayfly", meaning="for uv: how often it asks again"),
    Variable(name="PATH", set_by="the machine", meaning="passed on to a script, behind the programs of its environment"),
    Variable(name="LANG", set_by="the machine", meaning="passed on to a script", default="`C.UTF-8`"),
    Variable(name="LD_LIBRARY_PATH", set_by="the machine", meaning="passed on to a script"),
    Variable(name="MAYFLY_RANKS", set_by="Mayfly", meaning="socket through which the ranks of one model hear their training"),
    *(
        Variable(name=name, set_by="torchrun", meaning=meaning)
        for name, meaning in (
            ("RANK", "number of a rank among all that train one model"),
            ("LOCAL_RANK", "number of a rank on its machine: that of its GPU"),
            ("WORLD_SIZE", "number of ranks"),
            ("TORCHELASTIC_RESTART_COUNT", "how often the ranks were started again"),
        )
    ),
    Variable(
        name="GLOO_SOCKET_IFNAME", set_by="Mayfly", meaning="interface of the ranks' exchange on the host", default="loopback's"
    ),
    Variable(name="NCCL_SOCKET_IFNAME", set_by="Mayfly", meaning="interface over which GPUs' ranks find each other; as above"),
    Variable(
        name="TORCH_FR_BUFFER_SIZE", set_by="Mayfly", meaning="collectives that a rank remembers, for the log if it hangs"
    ),
    Variable(
        name="TORCH_NCCL_ASYNC_ERROR_HANDLING", set_by="Mayfly", meaning="whether a rank ends whose collective takes too long"
    ),
    Variable(name="TORCH_NCCL_DUMP_ON_TIMEOUT", set_by="Mayfly", meaning="whether NCCL writes a pickle then: no"),
    Variable(name="OMP_NUM_THREADS", set_by="Mayfly", meaning="`1` where a rank starts; it sets its own threads then"),
    Variable(
        name="PYTHONPATH",
        set_by="Mayfly",
        meaning="for the embedded AWS's process and an agent on a machine of yours: its code comes first",
    ),
    Variable(
        name="PYTHONSAFEPATH", set_by="Mayfly", meaning="for that agent: its folder is no place to import from; read by Python"
    ),
    Variable(name="PROJECT", set_by="infra/control.py", meaning="the project of the stack's functions"),
    Variable(name="STACK", set_by="infra/control.py", meaning="the stack of the functions"),
    Variable(name="BUCKET", set_by="infra/control.py", meaning="the sweeper's bucket"),
    Variable(name="SCHEDULE_GROUP", set_by="infra/control.py", meaning="group of the schedules that the sweeper deletes"),
)


def rehearsal_home() -> Path:
    """Return the folder of this desk's embedded AWS: the platform's for data, and none that may have come with a repository.

    https://specifications.freedesktop.org/basedir-spec (a relative path there is ignored; looked up 2026-11-22).
    """
    if named := os.environ.get("MAYFLY_HOME"):
        return Path(named)
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "mayfly"
    data = Path(os.environ.get("XDG_DATA_HOME") or "")
    return (data if data.is_absolute() else Path.home() / ".local" / "share") / "mayfly"


def keys_folder() -> Path:
    """Return the folder of the SSH keys of this desk's runs, there or not."""
    return rehearsal_home() / "keys"


def terminal_kind() -> str:
    """Return the kind of this process's terminal, by terminfo's name."""
    return os.environ.get("TERM") or "xterm"


def own_access_key() -> str:
    """Return the AWS access key of the environment; empty without one."""
    return os.environ.get("AWS_ACCESS_KEY_ID", "")


def stale_aws_variables(kept: Collection[str]) -> list[str]:
    """Return the AWS variables of the environment that would lead elsewhere: all but those kept and those about output."""
    harmless = ("AWS_PAGER", "AWS_DEFAULT_OUTPUT")
    names = [name for name in os.environ if name.startswith("AWS_") and not name.startswith("AWS_CLI_")]
    return sorted(name for name in names if name not in harmless and name not in kept)


def without_proxy(host: str) -> dict[str, str]:
    """Return the variables by which programs of a shell reach a host without a proxy; others keep theirs."""
    others = {name: os.environ.get(name, "").split(",") for name in ("NO_PROXY", "no_proxy")}
    return {name: ",".join([host, *(one for one in hosts if one not in ("", host))]) for name, hosts in others.items()}


@dataclass(frozen=True, kw_only=True)
class RehearsalEnvironment:
    """Settings of the embedded AWS: how it starts nodes, and where it stores applied programs."""

    fresh_nodes: bool
    programs: Path
    fork_server: Path | None  # None: one of its own


def rehearsal_environment() -> RehearsalEnvironment:
    """Return what the embedded AWS's process reads of the desk's environment.

    Programs are not kept in MAYFLY_HOME, which may lie in a folder that came with a repository: what is stored is replayed.
    """
    programs, fork_server = os.environ.get("MAYFLY_PROGRAMS"), os.environ.get("MAYFLY_FORK_SERVER")
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return RehearsalEnvironment(
        fresh_nodes=os.environ.get("MAYFLY_REHEARSAL_NODES") == "fresh",
        programs=Path(programs) if programs else caches / "mayfly" / "programs",
        fork_server=Path(fork_server) if fork_server else None,
    )


def local_folder() -> Path:
    """Return the user's folder of candles and models in the storage mode `local`, there or not."""
    named = os.environ.get("MAYFLY_LOCAL")
    return Path(named) if named else Path.home() / "mayfly"


def profiles_file() -> Path:
    """Return the user's file of GPU profiles, there or not."""
    named = os.environ.get("MAYFLY_PROFILES")
    return Path(named) if named else Path.home() / ".config" / "mayfly" / "gpu_profiles.toml"


def gpu_profile() -> str:
    """Return the name of the GPU profile to train by; empty without one."""
    return os.environ.get("GPU_PROFILE", "")


def visible_gpus() -> str | None:
    """Return CUDA_VISIBLE_DEVICES as it is; None where it is not set, which is not the same as empty."""
    return os.environ.get("CUDA_VISIBLE_DEVICES")


def terminal_is_dumb() -> bool:
    """Return whether the terminal can't move its cursor."""
    return os.environ.get("TERM") == "dumb"


def colours_refused() -> bool:
    """Return whether the user wants no colours (https://no-color.org: present, whatever its value)."""
    return "NO_COLOR" in os.environ


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
    boot_stages: tuple[datetime, ...] = ()  # when the code was there, and its environment
    baked: bool = False  # whether the image had the environment
    here: Path | None = None  # of a machine of the caller's own: the file that names the run
    folder: Path | None = None  # in the place of a bucket


def agent_environment() -> AgentEnvironment:
    """Return what the agent starts from. Raises KeyError for a variable that bootstrap.sh did not set."""
    stages = os.environ.get("MAYFLY_BOOT_STAGES", "").split()
    return AgentEnvironment(
        work=Path(os.environ["MAYFLY_WORK"]),
        bucket=os.environ["MAYFLY_BUCKET"],
        booted_at=datetime.fromtimestamp(float(os.environ["MAYFLY_BOOTED_AT"]), timezone.utc),
        region=os.environ["AWS_REGION"],
        endpoint_url=os.environ.get("AWS_ENDPOINT_URL"),
        metadata_endpoint=os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://169.254.169.254"),
        rehearsal="MAYFLY_ROOT" in os.environ,
        cache=Path(cache) if (cache := os.environ.get("MAYFLY_CACHE")) else None,
        cache_failed=os.environ.get("MAYFLY_CACHE_FAILED", ""),
        boot_stages=tuple(datetime.fromtimestamp(float(at), timezone.utc) for at in stages[:2]),
        baked=stages[2:] == ["1"],
        here=Path(here) if (here := os.environ.get("MAYFLY_HERE")) else None,
        folder=Path(folder) if (folder := os.environ.get("MAYFLY_FOLDER")) else None,
    )


@dataclass(frozen=True, kw_only=True)
class FunctionEnvironment:
    """Variables that the stack sets for its control function."""

    project: str
    stack: str


def function_environment() -> FunctionEnvironment:
    """Return the stack that a function belongs to. Raises KeyError for a variable that the stack did not set."""
    return FunctionEnvironment(project=os.environ["PROJECT"], stack=os.environ["STACK"])


def clock_ahead_seconds() -> int:
    """Return by how much the clock of this node is ahead of its machine's; 0 but in a rehearsal that skipped time."""
    return int(os.environ.get("MAYFLY_CLOCK_AHEAD", "0"))


def for_agent(variables: Mapping[str, str], *, code: Path) -> dict[str, str]:
    """Return the environment of an agent on a machine of the caller's own: theirs, with its variables, `code` before all else.

    Mayfly's own variables are left out: those of a rehearsal's node would make it one.
    """
    theirs = ("MAYFLY_", "AWS_") if "AWS_ACCESS_KEY_ID" in variables else ("MAYFLY_",)  # a rehearsal has keys of its own
    kept = {name: value for name, value in os.environ.items() if not name.startswith(theirs)}
    path = os.pathsep.join(filter(None, (str(code), os.environ.get("PYTHONPATH"))))
    return {**kept, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1", "PYTHONSAFEPATH": "1", **variables}


def variables_named(names: Collection[str]) -> dict[str, str]:
    """Return those of these variables that are set: secrets of a script on a machine of the caller's own."""
    return {name: os.environ[name] for name in names if name in os.environ}


def here_folder() -> Path:
    """Return the folder of the runs on this machine."""
    return rehearsal_home() / "here"


def for_training(*, profiles: Path) -> dict[str, str]:
    """Return the environment of a node's training: the agent's, with its file in the place of a user's profiles."""
    return {**os.environ, "MAYFLY_PROFILES": str(profiles)}


@dataclass(frozen=True, kw_only=True)
class RankEnvironment:
    """Variables of one rank: torchrun's, and the socket of the supervisor."""

    socket: str
    rank: int
    local_rank: int
    count: int
    restart: int


def rank_environment() -> RankEnvironment:
    """Return the place of this rank. Raises KeyError where torchrun did not start it."""
    return RankEnvironment(
        socket=os.environ["MAYFLY_RANKS"],
        rank=int(os.environ["RANK"]),
        local_rank=int(os.environ["LOCAL_RANK"]),
        count=int(os.environ["WORLD_SIZE"]),
        restart=int(os.environ["TORCHELASTIC_RESTART_COUNT"]),
    )


def for_ranks(socket: Path) -> dict[str, str]:
    """Return the environment of torchrun: this process's, with every connection between ranks on loopback."""
    loopback = "lo0" if sys.platform == "darwin" else "lo"
    ours = {"MAYFLY_RANKS": str(socket), "OMP_NUM_THREADS": "1"}
    # The recorder of collectives; a rank that is asked writes it to the log. Its own dump at a time-out is a pickle.
    ours |= {"TORCH_FR_BUFFER_SIZE": "2000", "TORCH_NCCL_DUMP_ON_TIMEOUT": "0", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"}
    return {**os.environ, "GLOO_SOCKET_IFNAME": loopback, "NCCL_SOCKET_IFNAME": loopback, **ours}


def for_refresh(secrets: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a user's refresh script: the agent's, which has no secret, and its own secrets."""
    return {**os.environ, **secrets}


def for_script(variables: Mapping[str, str], *, path: str) -> dict[str, str]:
    """Return the environment of a user's script: its own variables, `path` before the PATH, and nothing else of the agent's."""
    kept = {name: os.environ[name] for name in ("LANG", "LD_LIBRARY_PATH") if name in os.environ}
    paths = os.pathsep.join(dict.fromkeys((*path.split(os.pathsep), *os.environ.get("PATH", os.defpath).split(os.pathsep))))
    return {"LANG": "C.UTF-8", "PYTHONUNBUFFERED": "1", **kept, **variables, "PATH": paths}


def for_resolver() -> dict[str, str]:
    """Return the environment of a package resolver: the desk's, without settings by which it would find other packages."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("UV_", "PIP_", "VIRTUAL_", "CONDA_"))}
    return {**kept, "UV_HTTP_TIMEOUT": "20", "UV_HTTP_RETRIES": "1"}


def image_python() -> str:
    """Return the Python that has the image's torch; in a rehearsal the desk's own, and no fork."""
    return os.environ.get("MAYFLY_REAL_PYTHON") or os.environ.get("MAYFLY_DESK_PYTHON") or "/opt/pytorch/bin/python"


def for_embedded_aws(*, source: str) -> dict[str, str]:
    """Return the environment of the embedded AWS's process: the desk's without credentials, AWS profile and endpoints.

    `source` is the folder that this package is imported from; it comes first on the path.
    """
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    path = os.pathsep.join(filter(None, (source, os.environ.get("PYTHONPATH"))))
    return {**inherited, "PYTHONPATH": path}


def set_cublas_workspace(size: str) -> None:
    """Give this process's cuBLAS a workspace, unless the user has; it is read at the first matrix product."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", size)


def set_spin_count(loops: int) -> None:
    """Set how long idle OpenMP threads wait awake in processes started from now on, unless the user has said how they wait."""
    if not any(name in os.environ for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")):
        os.environ["GOMP_SPINCOUNT"] = str(loops)


def set_moto_images(path: Path) -> None:
    """Give moto its machine images; it reads the variable when it is imported."""
    os.environ["MOTO_AMIS_PATH"] = str(path)
