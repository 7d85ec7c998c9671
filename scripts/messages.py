"""Make the tables of docs/errors.md: every error of the source, read from its syntax trees.

`scripts/reference` writes it. `scripts.templates` finds the texts.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from scripts.templates import FIELD, MOST, SourceTree
from scripts.trees import Module, Scope, called
from trainer.base import errors

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "errors.md"
FOLDERS = ("trainer", "infra")
ERRORS = "trainer.base.errors"
BY_CODE = "By AWS's code"  # the class, as the reference's table of AWS's codes has it
REASONS = "Reasons"  # of exceptions that no user sees alone
BUILT_IN = ("ValueError", "RuntimeError", "RunError")
IMITATED = "trainer.rehearsal"  # its exceptions of other classes are AWS's own errors
SPECIAL = re.compile(r"[\\*<>|\[\]~$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")  # in Markdown
MOST_REASONS, MOST_REMEDIES = 8, 3  # of one message that are listed
PASSED_ON = re.compile("⟨(another message|what|reason|error)⟩")


@dataclass(frozen=True)
class Message:
    """One error: its three parts as templates (`⟨name⟩`), each with its alternatives, and its place."""

    error: str
    what: str
    whys: tuple[str, ...]
    dos: tuple[str, ...]
    path: Path

    @property
    def is_passed_on(self) -> bool:
        """Return whether its words are those of another error."""
        return bool(PASSED_ON.fullmatch(self.what))


def index_of_errors() -> str:
    """Return the tables: by class, then by room."""
    messages = all_messages()
    known = {name: (code, said) for name, code, said in described()}
    sections = [
        *((name, f"{name}: exit code {code}, {said}") for name, (code, said) in known.items()),
        (BY_CODE, f"{BY_CODE}: exit code and remedy of the code"),
        (REASONS, f"{REASONS}: in the brackets of other messages, and `pulumi up`"),
    ]
    listed = [one for one in messages if says_something(one.what)]
    unknown = [one for one in messages if not says_something(one.what) and not one.is_passed_on]
    text = f"{len(listed):,} messages; the words of {len(unknown)} more are a library's or a script's.\n"
    for name, title in sections:
        of_rooms = defaultdict(list)
        for one in listed:
            if one.error == name:
                of_rooms[one.path.parts[1] if one.path.parts[0] == "trainer" else "infra"].append(one)
        text += f"\n## {title}\n" if of_rooms else ""
        for room, some in sorted(of_rooms.items()):
            text += f"\n### {name}, {room}\n\n" + _table(some)
    return text


def says_something(text: str) -> bool:
    """Return whether a template has words beside its fields."""
    return bool(re.search("[A-Za-z]{2}", FIELD.sub("", text)))


def described() -> list[tuple[str, str, str]]:
    """Return the classes of errors with exit codes and meanings, as the module of errors draws them."""
    return re.findall(r"([A-Z]\w+) +(\d+) +(.+)", errors.__doc__ or "")


def _table(messages: Iterable[Message]) -> str:
    """Return a table of messages, in the order of their words; those that differ in one part are one row."""
    rows: dict[tuple[str, tuple[str, ...], Path], list[str]] = defaultdict(list)
    for one in messages:
        rows[one.what, one.dos, one.path] += one.whys
    same: dict[tuple[str, str, Path], list[str]] = defaultdict(list)
    for (what, dos, path), whys in rows.items():
        same[what, _joined(whys, "; or: ", MOST_REASONS), path] += dos
    lines = []
    for (what, why, path), some in same.items():
        message = f"{what.rstrip('.')} ({why})" if why else what
        file = "/".join(path.parts[2 if path.parts[0] == "trainer" else 1 :])
        lines.append(
            (_order(what), [marked(message), marked(_joined(some, " Or: ", MOST_REMEDIES)), f"`{file}`"])
        )
    return "".join(
        f"|{'|'.join(f' {cell} ' if cell else ' ' for cell in cells)}|\n"
        for cells in [("message", "what to do", "file"), ["---"] * 3, *(row for _, row in sorted(lines))]
    )


def _joined(texts: Iterable[str], between: str, most: int) -> str:
    some = list(dict.fromkeys(filter(None, texts)))
    return between.join([*some[:most], *(["…"] if len(some) > most else [])])


def _order(text: str) -> str:
    return re.sub(r"[^a-z0-9 ]", "", FIELD.sub("", text).lower()).strip()


def marked(text: str) -> str:
    """Return a template in Markdown: its fields in italics, all else as it is printed."""
    parts = text.replace("\n", " ").replace("⟩⟨", "⟩ ⟨").split("`")
    for index, part in enumerate(parts):
        if index % 2:
            parts[index] = FIELD.sub(lambda field: field[1].upper(), part)
        else:
            escaped = SPECIAL.sub(r"\\\g<0>", part)
            parts[index] = FIELD.sub(lambda field: _in_italics(field[1]), escaped)
    return ("`" if len(parts) % 2 else "\\`").join(parts)


def _in_italics(name: str) -> str:
    words = name.replace("\\", "").replace("_", " ").strip()
    return words if words == "…" else f"*{words}*"


@cache
def all_messages() -> tuple[Message, ...]:
    """Return every message of the source, in its order, without repetitions."""
    source = SourceTree(ROOT, FOLDERS)
    classes = _classes(source)
    found: dict[Message, None] = {}
    for module in source.modules.values():
        for node in module.nodes:
            if isinstance(node, ast.Call) and (name := _class_of(node, module, source, classes)):
                found.update(dict.fromkeys(_messages(node, name, module, source)))
    return tuple(found)


def _classes(source: SourceTree) -> dict[tuple[str, str], str]:
    """Return the classes of the tree of errors, by module and name, with the nearest one described."""
    known = {name for name, _, _ in described()} | {"TrainerError"}
    classes = {(ERRORS, name): name for name in known}
    size = 0
    while size != len(classes):
        size = len(classes)
        for module in source.modules.values():
            for name, kind in module.classes.items():
                for base in kind.bases:
                    home = source.defined(module, getattr(base, "id", ""))
                    if home and (home[0].name, home[1]) in classes:
                        classes.setdefault((module.name, name), classes[home[0].name, home[1]])
    return classes


def _class_of(
    node: ast.Call, module: Module, source: SourceTree, classes: dict[tuple[str, str], str]
) -> str | None:
    """Return the section of the error that a call makes; None for any other call."""
    name, raised = called(node), isinstance(module.parents[node], ast.Raise)
    if name == "error" and isinstance(node.func, ast.Attribute):
        if any(one.arg == "do" for one in node.keywords):
            return BY_CODE
        return "UsageError" if getattr(node.func.value, "id", "") == "parser" else None
    home = source.defined(module, name) if isinstance(node.func, ast.Name) else None
    if home and (home[0].name, home[1]) in classes:
        return classes[home[0].name, home[1]]
    is_ours = home is not None and home[1] in home[0].classes
    returned = isinstance(module.parents[node], ast.Return) and name == "Unsound"
    if (raised or returned) and node.args and (is_ours or name in BUILT_IN):
        return None if module.name.startswith(IMITATED) else REASONS
    return None


def _messages(node: ast.Call, error: str, module: Module, source: SourceTree) -> Iterator[Message]:
    """Yield the messages of a call that makes an error, one for each text of its first part."""
    if not node.args:
        return
    parts = {
        "what": node.args[0],
        **{one.arg: one.value for one in node.keywords if one.arg in ("why", "do")},
    }
    statement = module.within(node, ast.stmt)
    assert statement is not None
    at = Scope(module, statement)
    found = [
        Message(
            error,
            what,
            *(tuple(source.texts(parts[key], way)) if key in parts else () for key in ("why", "do")),
            module.path,
        )
        for way in source.contexts(at, parts.values())
        for what in source.texts(parts["what"], way)
    ]
    whole = [what for way in source.ways(at, [parts["what"]]) for what in source.texts(parts["what"], way)]
    differing = dict.fromkeys((one.whys, one.dos) for one in found)
    if len({one.what for one in found}) > max(MOST, 2 * len(differing)) and all(map(says_something, whole)):
        # many callers name one thing each: it is a field
        found = [Message(error, what, whys, dos, module.path) for what in whole for whys, dos in differing]
    yield from found
