"""Variables that a job sets for its command, as NAME=value: of a user's script, and of Mayfly's own trainer.

Standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from trainer.base.errors import UsageError
from trainer.base.settings import bad_value

MOST_VARIABLES, MOST_VALUE = 100, 4_096
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
SECRET = re.compile(r"(^|_)(SECRET|TOKEN|PASSWORD|PASSWD|PASSPHRASE|KEY|CREDENTIALS?)(_|$)", re.IGNORECASE)
# Variables of the trainer's process that its machine, its agent or Mayfly itself decides.
_OF_THE_MACHINE = ("PATH", "HOME", "USER", "TMPDIR", "CUDA_VISIBLE_DEVICES", "GPU_PROFILE", "OMP_NUM_THREADS")
_OF_RANKS = (
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    *("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TORCH_NCCL_DUMP_ON_TIMEOUT"),
)
_PREFIXES = ("MAYFLY_", "AWS_", "LD_", "DYLD_", "PYTHON", "TORCHELASTIC_")
# Beginnings of those that change the speed or what is logged, and no model.
_ONLY_SPEED = (
    *("NCCL_", "GLOO_", "TORCH_NCCL_", "TORCH_DISTRIBUTED_", "TORCH_LOGS", "TORCH_CPP_LOG_LEVEL"),
    *("TORCH_SHOW_CPP_STACKTRACES", "CUDA_LAUNCH_BLOCKING", "CUDA_MODULE_LOADING", "PYTORCH_CUDA_ALLOC_CONF"),
    *("PYTORCH_ALLOC_CONF", "OMP_", "GOMP_", "KMP_", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR"),
)


def read_variables(
    key: str, entries: Iterable[str], *, is_ours: Callable[[str], bool], ours: str, secrets: str
) -> dict[str, str]:
    """Return entries NAME=value of a key as a mapping.

    `is_ours` and `ours`: the names that Mayfly sets, and what to do about one; `secrets`: what to do about a
    name that is a secret's. Raises UsageError for a bad name, one that is ours, and a secret's.
    """
    made: dict[str, str] = {}
    for entry in entries:
        name, equals, value = entry.partition("=")
        if not equals or not NAME.fullmatch(name) or "\0" in value or len(value) > MOST_VALUE:
            raise bad_value(key, entry, "NAME=value")
        if is_ours(name):
            raise UsageError(f"{key} sets {name}", why="the node sets or removes it", do=ours)
        if SECRET.search(name):
            raise UsageError(f"{key} sets {name}", why="its name is that of a secret", do=secrets)
        made[name] = value
    if len(made) > MOST_VARIABLES:
        raise bad_value(key, list(made), f"at most {MOST_VARIABLES} variables")
    return made


def is_of_the_trainer(name: str) -> bool:
    """Return whether Mayfly or the machine decides a variable of the trainer's process."""
    return name.startswith(_PREFIXES) or name in (*_OF_THE_MACHINE, *_OF_RANKS)


def of_the_model(entries: Iterable[str]) -> list[str]:
    """Return the entries NAME=value that may change a model: all but those known to change only its speed."""
    return sorted(entry for entry in entries if not entry.startswith(_ONLY_SPEED))
