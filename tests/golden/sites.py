"""Where the code makes an error that a user may read: found by ast, so that no new one is forgotten."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path

from trainer.errors import TrainerError

ROOT = Path(__file__).resolve().parents[2]


def _import_modules_with_classes_of_errors() -> None:
    """Import every module that derives a class from one of trainer.errors, whatever other tests have
    imported.
    """
    errors = {one.__name__ for one in _below(TrainerError)}
    for path in sorted((ROOT / "trainer").rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and any(
                isinstance(base, ast.Name) and base.id in errors for base in node.bases
            ):
                import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))


def _below(parent: type[TrainerError]) -> Iterator[type[TrainerError]]:
    for child in parent.__subclasses__():
        yield child
        yield from _below(child)


_import_modules_with_classes_of_errors()
CLASSES = {one.__name__: one for one in _below(TrainerError) if one.__module__.startswith("trainer.")}


@dataclass(frozen=True, kw_only=True)
class Site:
    """One place that makes an error: its words as the source has them, what is filled in stands in braces."""

    path: str
    first_line: int
    last_line: int
    name: str
    what: str
    why: str
    do: str

    @property
    def words(self) -> str:
        """Return the site as one line, without its place: lines move."""
        why = f" ({self.why})" if self.why else ""
        do = f" {self.do}" if self.do else ""
        return f"{self.name} {CLASSES[self.name].exit_code}: {self.what}{why}.{do}"


@cache
def sites() -> list[Site]:
    """Return every place in trainer/ that makes an error of the tree, by file and line."""
    return [site for path in sorted((ROOT / "trainer").rglob("*.py")) for site in _of(path)]


def _of(path: Path) -> Iterator[Site]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in CLASSES
            and node.args
        ):
            parts = {keyword.arg: _text(keyword.value) for keyword in node.keywords}
            yield Site(
                path=path.relative_to(ROOT).as_posix(),
                first_line=node.lineno,
                last_line=node.end_lineno or node.lineno,
                name=node.func.id,
                what=_text(node.args[0]),
                why=parts.get("why", ""),
                do=parts.get("do", ""),
            )


def _text(node: ast.expr) -> str:
    """Return a literal's text, with what is filled in as {expression}; another expression as a whole in
    braces.
    """
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(
            part.value if isinstance(part, ast.Constant) else f"{{{ast.unparse(part.value)}}}"  # type: ignore[attr-defined]
            for part in node.values
        )
    return f"{{{ast.unparse(node)}}}"
