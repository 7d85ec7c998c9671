"""A user's Python file: its keys in a job, its checks, and its class.

    [model]
    file = "my_net.py"      # beside the job file
    class = "MyNet"
    hidden = 32             # any other key goes to the class

The file is identified by its sha256. It is at `file`, or on a node in the bundle, under its hash. Loading a
class runs the file; reading a job, a manifest or a card does not. Standard library only.
"""

from __future__ import annotations

import builtins
import hashlib
import json
import keyword
import re
import stat
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, Self, get_type_hints

from trainer.base.errors import UsageError, nearest
from trainer.base.files import read_plain
from trainer.base.settings import bad_value, keys_of, read_keys, setting
from trainer.base.strict_json import Fields, Unsound, Value

NAME = "own"  # of a home whose class is the user's
MAX_BYTES = 1_000_000
FOLDER = "own_files"  # of the bundle, in the package: <sha256>.py
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,95}\.py")
_importer: Callable[..., Any] | None = None
_NOT_ARGUMENTS = {"name", "sha256", "shown", "measured"}  # keys that no user writes


@dataclass(frozen=True, kw_only=True)
class OwnFile:
    """Keys of a table whose class is the user's: file and class, and under `arguments` the constructor's
    arguments.
    """

    file: str = setting("", "Your Python file.")
    class_name: str = setting("", "Class in it.", key="class")
    sha256: str = ""  # of the file; empty until it was read
    shown: str = ""  # the user's name of the file, if it is stored under its hash
    arguments: str = "{}"  # the other keys, as JSON: settings are compared and hashed
    # a trial's measurements (`train/own/probe.py`); a dataclass with `of`, the digest of the tried settings
    measured: Any = None

    name: ClassVar[str] = NAME
    part: ClassVar[str]
    takes_any_key: ClassVar[bool] = True
    measured_as: ClassVar[type[Any]]

    @classmethod
    def from_keys(cls, values: Mapping[str, Any]) -> Self:
        """Build it from the keys of its table. Raises UsageError for a bad name or value."""
        declared = keys_of(cls)
        given = {key: value for key, value in values.items() if key in declared}
        free = {key: values[key] for key in values.keys() - declared.keys() - _NOT_ARGUMENTS}
        for key, value in free.items():
            if not key.isidentifier() or not _is_plain(value):
                expected = "text, a number, true or false, or a list of these"
                raise bad_value(f"{cls.part}.{key}", value, expected)
        made = read_keys(cls.part, cls, given) | {"arguments": json.dumps(free, sort_keys=True)}
        made |= {key: str(values[key]) for key in ("sha256", "shown") if values.get(key)}
        if values.get("measured") is not None:
            try:
                made["measured"] = _measured(cls.measured_as, Value(values["measured"], "measured").fields())
            except Unsound as error:
                expected = "what Mayfly wrote there: leave it out"
                raise bad_value(f"{cls.part}.measured", "...", expected) from error
        return cls(**made)

    def to_keys(self) -> dict[str, Any]:
        """Return the keys that rebuild it, as JSON values."""
        keys = {key: getattr(self, item.name) for key, item in keys_of(self).items()}
        measured = asdict(self.measured) if self.measured else None
        written = {"sha256": self.sha256, "shown": self.shown, "measured": measured}
        known = {key: value for key, value in written.items() if value}
        return {"name": self.name, **keys, **known, **self.given}

    def card_keys(self) -> dict[str, Any]:
        """Return the keys that a card keeps, with the file's name instead of its path."""
        kept = {key: value for key, value in self.to_keys().items() if key not in ("name", "shown")}
        return {**kept, "file": self.base_name}

    @property
    def choice(self) -> dict[str, Any]:
        """Return the keys that choose it."""
        return {"file": self.file, "class": self.class_name}

    @property
    def given(self) -> dict[str, Any]:
        """Return the keys that go to the constructor."""
        return dict(json.loads(self.arguments))

    @property
    def base_name(self) -> str:
        """Return the file's name without its folder."""
        return self.shown or Path(self.file).name

    @property
    def code(self) -> str:
        """Return a digest of everything that memory, speed and labels depend on."""
        raise NotImplementedError

    def check_names(self) -> None:
        """Raise UsageError unless both names can be those of a Python file and of a class."""
        for key, value in self.choice.items():
            if not value:
                what = f"{self.part}.{'class' if key == 'file' else 'file'} without {self.part}.{key}"
                raise UsageError(what, do=f"Set {self.part}.{key}, too.")
        self.check_file_name(f"{self.part}.file")
        name = self.class_name
        if not name.isidentifier() or keyword.iskeyword(name) or len(name) > 100:
            raise bad_value(f"{self.part}.class", name, "the name of a class")

    def check_file_name(self, key: str) -> None:
        """Raise UsageError for a name that is not that of a Python file. `key` is for the message."""
        if not _FILE_NAME.fullmatch(self.base_name) or not self.file.isprintable():
            raise bad_value(key, self.file, "a Python file: letters, digits, _ - and . in its name")

    @property
    def is_tried(self) -> bool:
        """Return whether a trial has measured its present form."""
        return self.measured is not None and self.measured.of == self.code

    def with_file(self, place: str | Path) -> Self:
        """Return the settings with the same file at another place."""
        return replace(self, file=str(place), shown="")

    def with_copy(self, place: Path) -> Self:
        """Return the settings with a copy named by its hash; the user's file name is kept."""
        return replace(self, file=str(place), shown=self.base_name)

    def card_entry(self) -> dict[str, str]:
        """Return the card's entry of the file: names, hash and text. Raises UsageError if it is gone or
        changed.
        """
        return {**self.manifest_entry(), "text": read_file(self.file, sha256=self.sha256).decode()}

    def manifest_entry(self) -> dict[str, str]:
        """Return names and hash."""
        return {"file": self.base_name, "class": self.class_name, "sha256": self.sha256}

    def load(self) -> type[Any]:
        """Run the file and return its class. Raises UsageError."""
        return load_class(self.file, self.class_name, sha256=self.sha256)


def reference(text: str) -> dict[str, str] | None:
    """Return {"file", "class"} of `my_net.py:MyNet`, and None for a name. Raises UsageError for a file
    without a class.
    """
    file, _, class_name = text.rpartition(":")
    if file.endswith(".py"):
        return {"file": file, "class": class_name}
    if text.endswith(".py"):
        raise UsageError(f"'{text}' names no class", do=f"Write {text}:NAME, with the class in it.")
    return None


def read_file(file: str | Path, *, sha256: str = "") -> bytes:
    """Return the content of a user's file. Raises UsageError for anything but a small text file, or for
    another hash.
    """
    path = Path(file)
    try:
        status = path.lstat()
        if stat.S_ISLNK(status.st_mode):
            raise UsageError(f"{path} is a symbolic link", do="Name the file itself.")
        if not stat.S_ISREG(status.st_mode):
            raise UsageError(f"{path} is not a file", do="Name a Python file.")
        if status.st_size > MAX_BYTES:
            what, why = f"{path} has {status.st_size:,} bytes", f"{MAX_BYTES:,} is the most"
            raise UsageError(what, why=why, do="Keep data out of it.")
        content = read_plain(path, most_bytes=MAX_BYTES)
        content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8", why=f"byte {error.start}", do="Save it as UTF-8.") from error
    except FileNotFoundError as error:
        do = "Check the path: a job file names it from its own folder."
        raise UsageError(f"{path} does not exist", do=do) from error
    except OSError as error:
        why, do = str(error.strerror), "Check its permissions."
        raise UsageError(f"cannot read {path}", why=why, do=do) from error
    actual = hashlib.sha256(content).hexdigest()
    if sha256 and actual != sha256:
        why = f"its sha256 is {actual[:12]}..., the model's file has {sha256[:12]}..."
        do = "Give the file that the model was trained with."
        raise UsageError(f"{path} is another file", why=why, do=do)
    return content


def in_bundle(sha256: str) -> Path | None:
    """Return the file with this hash that came with the bundle; None if none did."""
    path = Path(__file__).parents[1] / FOLDER / f"{sha256}.py"
    return path if re.fullmatch(r"[0-9a-f]{64}", sha256) and path.is_file() else None


def restrict_imports(importer: Callable[..., Any] | None) -> None:
    """Replace `__import__` by `importer` in the user's files that this process loads from now on; None: the
    usual one.
    """
    global _importer
    _importer = importer


def load_module(file: str | Path, *, sha256: str) -> ModuleType:
    """Run a user's file as a module of its own. Raises UsageError, one line, for any failure."""
    name, content = Path(file).name, read_file(file, sha256=sha256)
    module = ModuleType(f"own_{hashlib.sha256(content).hexdigest()[:16]}")
    module.__file__ = str(file)
    if _importer is not None:
        module.__dict__["__builtins__"] = {**vars(builtins), "__import__": _importer}
    sys.modules[module.__name__] = module  # dataclasses and pickle look a class's module up
    with as_usage_error(f"{name} can't be loaded"):
        exec(compile(content, name, "exec", dont_inherit=True), module.__dict__)
    return module


def load_class(file: str | Path, class_name: str, *, sha256: str = "") -> type[Any]:
    """Run a user's file as a module of its own and return a class of it. Raises UsageError, one line, for any
    failure.

    Each call runs it again, so that models share none of its variables.
    """
    name, module = Path(file).name, load_module(file, sha256=sha256)
    member = module.__dict__.get(class_name)
    if not isinstance(member, type):
        types = {key: value for key, value in module.__dict__.items() if isinstance(value, type)}
        classes = [key for key, value in types.items() if value.__module__ == module.__name__]
        has = f"it has {', '.join(classes[:8])}" if classes else "it has none"
        do = nearest(class_name, classes) or "Check the name."
        raise UsageError(f"{name} has no class {class_name}", why=has, do=do)
    return member


@cache
def instance_of(settings: OwnFile) -> Any:
    """Return an instance of the class of these settings, made with the keys given to it; one a process.
    Raises UsageError.
    """
    cls = settings.load()
    with as_usage_error(f"{settings.class_name} can't be built"):
        return cls(**settings.given)


@contextmanager
def as_usage_error(what: str, do: str = "Correct the file.") -> Iterator[None]:
    """Turn an exception of a user's code into one UsageError: `what`, and the exception as the reason."""
    try:
        yield
    except UsageError:
        raise
    except SyntaxError as error:
        raise UsageError(what, why=f"line {error.lineno}: {_line(error.msg)}", do=do) from error
    except (Exception, SystemExit) as error:  # broad on purpose: it is not our code
        raise UsageError(what, why=f"{type(error).__name__}: {_line(error)}", do=do) from error


def digest_of(*parts: object) -> str:
    """Return a short digest of JSON values."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def _measured(cls: type[Any], fields: Fields) -> Any:
    """Read a trial's measurements from JSON values. Raises Unsound."""
    hints = get_type_hints(cls)
    read: dict[type[Any], Callable[[Value], Any]] = {
        int: lambda item: item.whole(),
        float: lambda item: item.number(least=0),
        bool: lambda item: item.truth(),
        str: lambda item: item.text(),
    }
    return cls(**{name: read[hints[name]](item) for name, item in fields.exactly(tuple(hints)).items()})


def _line(error: object) -> str:
    """Return a text in one line, not too long."""
    return " ".join("".join(letter if letter.isprintable() else " " for letter in str(error)).split())[:300]


def _is_plain(value: Any) -> bool:
    """Return whether a value is a TOML scalar, or a list of such, that JSON has too."""
    if isinstance(value, list):
        return all(_is_plain(item) for item in value)
    return isinstance(value, (str, bool, int)) or (isinstance(value, float) and abs(value) < float("inf"))
