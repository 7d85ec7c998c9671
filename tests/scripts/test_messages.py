"""scripts/messages.py and scripts/templates.py: templates of errors, from syntax alone."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from scripts.messages import marked
from scripts.templates import SourceTree
from scripts.trees import Scope, called


def messages(folder: Path, body: str) -> list[str]:
    """Return the texts of the first argument of each `Wrong(...)` in a source, in its order."""
    (folder / "room").mkdir()
    (folder / "room" / "one.py").write_text(body, encoding="utf-8")
    source = SourceTree(folder, ["room"])
    (module,) = source.modules.values()
    found = []
    for node in module.nodes:
        if isinstance(node, ast.Call) and called(node) == "Wrong":
            statement = module.within(node, ast.stmt)
            assert statement is not None
            for way in source.contexts(Scope(module, statement), node.args):
                found.append(" ".join("|".join(source.texts(part, way)) for part in node.args))
    return list(dict.fromkeys(found))


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ('raise Wrong(f"no {path}")', ["no ⟨path⟩"]),
        ("raise Wrong(f\"{len(names)} of {counted(2, 'bar')}\")", ["⟨number⟩ of ⟨number⟩ bars"]),
        ('raise Wrong("; ".join(f"no {name}" for name in names))', ["no ⟨name⟩; …"]),
        ('raise Wrong("a" + f" {self.run_id}" if x else "it is b")', ["a ⟨run_id⟩|it is b"]),
        ("raise Wrong(str(error.strerror))", ["⟨reason⟩"]),
        ('RULE = "its rule"\nraise Wrong(f"it breaks {RULE}")', ["it breaks its rule"]),
        ('DO = "Try it."\nraise Wrong("or " + DO[0].lower() + DO[1:])', ["or try it."]),
        ('MOST = 24 * DAYS\nraise Wrong(f"{MOST} h is the most")', ["⟨most⟩ h is the most"]),
        ('MOST = 3000\nraise Wrong(f"{MOST:,} is the most")', ["3,000 is the most"]),
    ],
)
def test_an_expression_has_its_words_and_names(tmp_path: Path, body: str, expected: list[str]) -> None:
    assert messages(tmp_path, body) == expected


def test_parts_that_were_given_together_stay_together(tmp_path: Path) -> None:
    body = """
def refuse(x):
    what, why = "it is red", "as blood"
    if x > 1:
        what, why = "it is blue", "as the sky"
    elif x > 2:
        return
    raise Wrong(what, why)
"""
    assert sorted(messages(tmp_path, body)) == ["it is blue as the sky", "it is red as blood"]


def test_a_way_that_leaves_gives_nothing(tmp_path: Path) -> None:
    body = """
def refuse(x):
    why = "it is old"
    if x:
        why = "it is new"
        raise Other(why)
    for one in x:
        if why := flaw(one):
            raise Wrong(why)
    raise Wrong(why)

def flaw(one):
    if one:
        return f"it has {one}"
    return ""
"""
    assert messages(tmp_path, body) == ["it has ⟨one⟩", "it is old"]


def test_a_parameter_has_the_words_of_each_caller(tmp_path: Path) -> None:
    body = """
def refusal(what, why="no reason"):
    return Wrong(f"{what} is refused", why)

def first(path):
    raise refusal(f"the file {path}")

def second(name):
    raise refusal("the name", f"{name} is taken")
"""
    expected = ["the file ⟨path⟩ is refused no reason", "the name is refused ⟨name⟩ is taken"]
    assert messages(tmp_path, body) == expected


def test_a_template_in_markdown_is_as_printed() -> None:
    text = "set `MAYFLY_HOME=⟨folder⟩` for ⟨run_id⟩⟨more⟩: a_b _c* [x] <y> |"
    assert marked(text) == "set `MAYFLY_HOME=FOLDER` for *run id* *more*: a_b \\_c\\* \\[x\\] \\<y\\> \\|"
