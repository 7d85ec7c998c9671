"""The `[script]` table of a job: a user's training script, its files, its variables, and the rule for file
names.

Standard library only: the desk, the control plane and the node all read it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from trainer.base.errors import UsageError, nearest
from trainer.base.settings import bad_value, check_limits, setting
from trainer.job.script_values import Combination, check_gpus, combinations, variables_of
from trainer.job.variables import NAME, SECRET, read_variables

Better = Literal["min", "max"]
PICK: Mapping[str, Callable[[float, float], float]] = {"min": min, "max": max}  # the better of two
KIND = "script"  # of its pieces, and of the work of its run
FOLDER = "script_files"  # of the bundle, in the package
# Variables that every script gets: docs/scripts-and-machines.md.
CONTRACT = (
    *("MAYFLY_DATA", "MAYFLY_OUT", "MAYFLY_CHECKPOINTS", "MAYFLY_EVENTS", "MAYFLY_DEVICES"),
    "MAYFLY_NOTICE",
)
MOST_FILES, MOST_FILE_BYTES = 2_000, 64 * 2**20  # of a script, in the bundle
MOST_DATA_FILES = 20_000
MOST_WORDS, MOST_SECRETS = 256, 20
VISIBLE = "CUDA_VISIBLE_DEVICES"  # set for each of several values
_VARIABLE = re.compile(r"\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)\})", re.ASCII)
# A script that names no metric in `best` is judged by the first of these that its events have. The value says
# which end is better.
METRICS: Mapping[str, Better] = {
    "score": "max",
    **dict.fromkeys(("validation_loss", "val_loss", "eval_loss"), "min"),
    **dict.fromkeys(("val_accuracy", "eval_accuracy"), "max"),
    **dict.fromkeys(("loss", "train_loss"), "min"),
}
_BEST = re.compile(r"([A-Za-z][A-Za-z0-9_./ -]{0,63}):(min|max)")  # a metric is named as a curve is
_PYTHON = re.compile(r"3\.(?:[89]|\d\d)")  # no 3.1: TOML reads 3.10 as that
_OURS = ("MAYFLY_", "AWS_")
# A word of a command that has a secret in it: --password x, API_KEY=x, https://user:x@host. Unlike names of
# variables, those of options such as --pad-token and --sort-key are often no secret's.
_SECRET_OPTION = re.compile(
    r"--?(?:\w+[-_])?(?:(?:api|access|secret|private)[-_]?key|(?:api|access|auth|hf)[-_]?token|secret"
    r"|password|passwd|passphrase|credentials?)",
    re.IGNORECASE,
)
_URL_WITH_SECRET = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s:@]*:[^/\s@]+@", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class ScriptSettings:
    """The `[script]` table. A job has a script if `command` is given."""

    command: str = setting(
        "", "Command, split into words as a shell does; $NAME and ${NAME} are replaced. No shell runs."
    )
    files: tuple[str, ...] = setting(
        (), "Files and folders that it needs; empty: those that it names, and what they import."
    )
    root: str = setting("", "Folder of these files at the desk; empty: that of the job file.")
    requirements: str = setting(
        "",
        "File that lists its packages: requirements.txt, pyproject.toml, or a script with a PEP 723 block."
        " Empty: the first found of them.",
    )
    python: str = setting(
        "", "Python of the machine, such as 3.13, that packages are resolved for; empty: its image line's."
    )
    env: tuple[str, ...] = setting(
        (), "Variables of the script, as NAME=value. The manifest shows them: no secrets."
    )
    secrets: tuple[str, ...] = setting(
        (), "Names of the stack's secrets that the script gets, as variables; docs/scripts-and-machines.md."
    )
    restarts: int = setting(
        1, "Starts again after a signal killed it, with its checkpoints.", least=0, most=100
    )
    out_gib: float = setting(20.0, "GiB of files in MAYFLY_OUT that are kept.", above=0, most=1_024)
    over: Any = setting(
        "", "Values to run over, each combination by itself: lists to combine, rows, or a CSV file."
    )
    gpus: float = setting(
        0.0, "GPUs of each value: a number, or a share such as 0.25; 0: one. Without `over` all."
    )

    ray: bool = setting(
        False,
        "With machine.nodes: Ray on every machine, and the script on the first alone, with RAY_ADDRESS.",
    )
    best: str = setting(
        "",
        "Metric of its events that it is judged by, and which end is better: mse:min, auc:max. Empty: the"
        " first of score, validation_loss and a few others.",
    )

    def __post_init__(self) -> None:
        check_limits("script", self)
        named_metric("script.best", self.best)
        if self.python and not _PYTHON.fullmatch(self.python):
            raise bad_value("script.python", self.python, 'a version such as "3.10", in quotes')
        self._check_secrets()
        check_gpus(self.gpus)
        self._refuse_secret_words()

    def check_columns(self, columns: Sequence[str], key: str) -> None:
        """Raise UsageError for what does not fit the names of the values that it runs over, [] if it runs
        once. `key` has them.
        """
        made = tuple(variables_of(dict.fromkeys(columns, "")))
        if self.gpus and not made:
            why, do = "one script gets all GPUs", "Leave it out, or set script.over or search.over."
            raise UsageError("script.gpus without script.over", why=why, do=do)
        if self.ray and made:
            why, do = "Ray serves one script on all machines", f"Leave {key} out, or script.ray."
            raise UsageError(f"script.ray with {key}", why=why, do=do)
        if made and VISIBLE in self.variables:
            do = "Leave it out; script.gpus says how many."
            raise UsageError(f"script.env sets {VISIBLE}", why="each value gets its own", do=do)
        if secret := next((name for name in made if SECRET.search(name)), ""):
            do = "Rename it, or leave it out: anyone who can read the bucket can read the manifest."
            raise UsageError(f"{key} makes {secret}", why="its name is that of a secret", do=do)
        known = (*CONTRACT, *made, *self.variables)
        for name in (name for word in self.words for name in variables_in(word)):
            if name not in known:
                do = nearest(name, known) or f"There are {', '.join(known)}."
                raise UsageError(f"script.command uses ${name}", why="no such variable", do=do)

    def _refuse_secret_words(self) -> None:
        """Raise UsageError for a word that is, or is followed by, the value of a secret."""
        for word, following in zip(self.words, [*self.words[1:], ""], strict=False):
            name, equals, value = word.partition("=")
            value = value if equals else following
            is_option = _SECRET_OPTION.fullmatch(name) and value and (equals or value[0] != "-")
            is_variable = NAME.fullmatch(name) and SECRET.search(name) and value and equals
            if is_option or is_variable or _URL_WITH_SECRET.search(word):
                shown = name if is_option or is_variable else "a URL with a password"
                do = "Name it in script.secrets, and let the script read that variable of its environment."
                why = "all users of the machine see a command's words, and readers of the bucket the manifest"
                raise UsageError(f"script.command has {shown}", why=why, do=do)

    def _check_secrets(self) -> None:
        """Raise UsageError for a name that is invalid, set elsewhere, or given twice."""
        for name in self.secrets:
            reserved = name.startswith((*_OURS, "LD_", "PYTHON")) or name in ("PATH", "HOME", "TMPDIR")
            if reserved or not NAME.fullmatch(name):
                none = "none of PATH, HOME, LD_*, PYTHON*, AWS_*, MAYFLY_*"
                raise bad_value("script.secrets", name, f"names of variables such as WANDB_API_KEY, {none}")
            if name in self.variables:
                raise UsageError(f"script.env sets {name}, a secret", do="Remove it from one of them.")
        if len(set(self.secrets)) < len(self.secrets) or len(self.secrets) > MOST_SECRETS:
            raise bad_value("script.secrets", list(self.secrets), f"at most {MOST_SECRETS} names that differ")

    @property
    def combinations(self) -> dict[str, Combination]:
        """Return the values of each piece, by the name of its folder; {} if the script runs once."""
        return combinations(self.over)

    @property
    def metrics(self) -> dict[str, Better]:
        """Return the metrics that it may be judged by, the first of them that it reports, with the better
        end.
        """
        return named_metric("script.best", self.best) or dict(METRICS)

    @property
    def words(self) -> list[str]:
        """Return the words of the command, its variables not yet replaced. Raises UsageError for an open
        quote.
        """
        if not self.command:
            return []
        try:
            words = shlex.split(self.command)
        except ValueError as error:
            raise bad_value("script.command", self.command, f"words as in a shell ({error})") from error
        if not words or len(words) > MOST_WORDS or not all(word.isprintable() for word in words):
            raise bad_value("script.command", self.command, f"1 to {MOST_WORDS} printable words")
        return words

    @property
    def variables(self) -> dict[str, str]:
        """Return `env` as a mapping. Raises UsageError for a bad name, one that is set for the script, and a
        secret's.
        """
        reason = "anyone who can read the bucket can read this"
        return read_variables(
            "script.env",
            self.env,
            is_ours=lambda name: name.startswith(_OURS) or name == "PATH",
            ours="Leave it out: docs/scripts-and-machines.md has the variables that a script gets.",
            secrets=f"Name it in script.secrets instead (docs/scripts-and-machines.md): {reason}.",
        )


def named_metric(key: str, text: str) -> dict[str, Better]:
    """Return the metric that a key names, and its better end; {} if it names none. Raises UsageError."""
    if (named := _BEST.fullmatch(text)) is None and text:
        raise bad_value(key, text, "a metric with min or max, such as mse:min or auc:max")
    return {named[1]: cast(Better, named[2])} if named else {}


def variables_in(word: str) -> list[str]:
    """Return the names of the variables in a word."""
    return [plain or braced for plain, braced in _VARIABLE.findall(word)]


def replaced(word: str, values: Mapping[str, str]) -> str:
    """Return a word with its variables replaced, once: a value is not read for variables."""
    return _VARIABLE.sub(lambda match: values[match[1] or match[2]], word)
