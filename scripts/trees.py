"""Syntax trees of the source: modules, calls with their arguments, and the ways to a statement.

Nothing of the source is imported or run.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

REASON = "⟨reason⟩"  # what an exception says
TEXT_METHODS = ("strip", "rstrip", "lstrip", "lower", "removesuffix", "removeprefix", "capitalize", "title")
SAME = ("sum", "get", "group", "keys", "values", "partition", "split", "replace")  # of methods
OTHERS = {"what": "another message", "why": "its reason", "do": "what to do there"}  # of an error passed on

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Given:
    """An expression, or one element of it, and where it is evaluated."""

    node: ast.expr
    at: Scope
    element: int | None = None


@dataclass(frozen=True)
class Scope:
    """A statement, and the values of names on one way to it."""

    module: Module
    statement: ast.AST
    names: Mapping[str, Given | str] = field(default_factory=dict)
    depth: int = 0

    def deeper(self) -> Scope:
        return replace(self, depth=self.depth + 1)


class Module:
    """A file's tree: the parent of each node, its functions, constants and imports."""

    def __init__(self, path: Path, root: Path) -> None:
        self.path = path.relative_to(root)
        self.name = ".".join(self.path.with_suffix("").parts).removesuffix(".__init__")
        self.tree = ast.parse(path.read_text(encoding="utf-8"))
        self.nodes: list[ast.AST] = [self.tree]
        self.parents: dict[ast.AST, ast.AST] = {}
        for node in self.nodes:  # which grows
            for child in ast.iter_child_nodes(node):
                if not isinstance(
                    child, (ast.expr_context, ast.operator, ast.cmpop, ast.unaryop, ast.boolop)
                ):
                    self.parents[child] = node
                    self.nodes.append(child)
        self.imports: dict[str, tuple[str, str]] = {}
        for node in self.nodes:
            if isinstance(node, ast.ImportFrom) and node.module:
                for one in node.names:
                    self.imports[one.asname or one.name] = (node.module, one.name)
        self.functions = {one.name: one for one in self.tree.body if isinstance(one, Function)}
        self.classes = {one.name: one for one in self.nodes if isinstance(one, ast.ClassDef)}
        self.constants = {}
        for statement in self.tree.body:
            targets = (
                statement.targets
                if isinstance(statement, ast.Assign)
                else [getattr(statement, "target", None)]
            )
            for target in targets:
                if isinstance(target, ast.Name) and getattr(statement, "value", None) is not None:
                    self.constants[target.id] = statement

    def within(self, node: ast.AST, kind: type[ast.AST] | tuple[type[ast.AST], ...]) -> ast.AST | None:
        """Return the innermost node of a kind that holds this one, or itself."""
        one: ast.AST | None = node
        while one is not None and not isinstance(one, kind):
            one = self.parents.get(one)
        return one

    def function(self, node: ast.AST) -> Function | None:
        found = self.within(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        return found if isinstance(found, Function) else None


@cache
def locals_of(function: Function) -> dict[str, ast.expr]:
    """Return what a function gives to its names, by assignments."""
    return {
        target.id: one.value
        for one in ast.walk(function)
        if isinstance(one, ast.Assign)
        for target in one.targets
        if isinstance(target, ast.Name)
    }


def called(node: ast.Call) -> str:
    """Return the last name of what is called."""
    return getattr(node.func, "id", None) or getattr(node.func, "attr", "")


def arguments(home: Module, function: Function, call: ast.Call, scope: Scope) -> dict[str, Given | str]:
    """Return the values of a function's parameters in a call, defaults included."""
    positional = [*function.args.posonlyargs, *function.args.args]
    defaults = dict(
        zip((one.arg for one in reversed(positional)), reversed(function.args.defaults), strict=False)
    )
    defaults |= {
        one.arg: value
        for one, value in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True)
        if value
    }
    if positional and positional[0].arg in ("self", "cls"):
        positional = positional[1:]
    names: dict[str, Given | str] = {
        one.arg: Given(defaults[one.arg], Scope(home, home.tree, depth=scope.depth))
        if one.arg in defaults
        else f"⟨{one.arg}⟩"
        for one in parameters(function)
    }
    given = itertools.takewhile(lambda value: not isinstance(value, ast.Starred), call.args)
    names |= {one.arg: Given(value, scope) for one, value in zip(positional, given, strict=False)}
    return names | {one.arg: Given(one.value, scope) for one in call.keywords if one.arg in names}


def parameters(function: Function) -> list[ast.arg]:
    return [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]


def backwards(scope: Scope, node: ast.AST, wanted: frozenset[str]) -> Iterator[dict[str, Given | str]]:
    """Yield what names were last given on each way to a statement of a function, walking backwards."""
    parent = scope.module.parents.get(node)
    if not wanted or parent is None or isinstance(node, (*Function.__args__, ast.ClassDef)):
        yield {}
        return
    for _, block in ast.iter_fields(parent):
        if isinstance(block, list) and node in block and isinstance(node, (ast.stmt, ast.match_case)):
            index = block.index(node)
            break
    else:
        block, index = [], 0
    if index and isinstance(node, ast.stmt):
        yield from _through(scope, block[index - 1], wanted)
        return
    names = _of_header(scope, parent, wanted)
    for rest in backwards(scope, parent, wanted - names.keys()):
        yield {**rest, **names}


def _through(scope: Scope, before: ast.stmt, wanted: frozenset[str]) -> Iterator[dict[str, Given | str]]:
    """Yield the same from behind a statement."""
    names = {**_of_header(scope, before, wanted), **_assigned(scope, before, wanted)}
    blocks = [] if isinstance(before, (*Function.__args__, ast.ClassDef)) else _blocks(before)
    if not any(_assigns(block, wanted) for block in blocks):
        for rest in backwards(scope, before, wanted - names.keys()):
            yield {**rest, **names}
        return
    for block in blocks:
        if block and not isinstance(block[-1], (ast.Return, ast.Raise, ast.Continue, ast.Break)):
            yield from _through(scope, block[-1], wanted)
    if not isinstance(before, (ast.With, ast.Try)) and not getattr(before, "orelse", None):
        yield from backwards(scope, before, wanted)


def _blocks(node: ast.AST) -> list[list[ast.stmt]]:
    """Return the blocks of a statement that follow its head."""
    if isinstance(node, ast.Match):
        return [case.body for case in node.cases]
    handlers = [one.body for one in getattr(node, "handlers", ())]
    body, other = getattr(node, "body", None), getattr(node, "orelse", None)
    if isinstance(node, ast.Try):
        return [[*body, *other], *handlers]
    return [block for block in (body, other) if isinstance(block, list) and block]


def _assigns(block: list[ast.stmt], wanted: frozenset[str]) -> bool:
    return any(not wanted.isdisjoint(_given(statement)) for statement in block)


@cache
def _given(statement: ast.stmt) -> frozenset[str]:
    """Return the names that a statement gives a value."""
    names = (one for one in ast.walk(statement) if isinstance(one, ast.Name))
    return frozenset(one.id for one in names if isinstance(one.ctx, ast.Store))


@cache
def names_in(node: ast.expr) -> frozenset[str]:
    """Return the names in an expression."""
    return frozenset(one.id for one in ast.walk(node) if isinstance(one, ast.Name))


def _assigned(scope: Scope, node: ast.stmt, wanted: frozenset[str]) -> dict[str, Given | str]:
    """Return what a simple statement gives to names."""
    at = replace(scope, statement=node, names={})
    names: dict[str, Given | str] = {}
    if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name) and node.target.id in wanted:
        before = ast.Name(node.target.id, ast.Load())
        names[node.target.id] = Given(ast.BinOp(before, node.op, node.value), at)
    value = getattr(node, "value", None)
    for target in getattr(node, "targets", None) or [getattr(node, "target", None)]:
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and isinstance(value, ast.expr):
            names |= _unpacked(target, value, at, wanted)
    return names


def _unpacked(
    target: ast.expr | None, value: ast.expr, at: Scope, wanted: frozenset[str]
) -> dict[str, Given | str]:
    if isinstance(target, ast.Name):
        return {target.id: Given(value, at)} if target.id in wanted else {}
    names: dict[str, Given | str] = {}
    if isinstance(target, ast.Tuple):
        for index, one in enumerate(target.elts):
            if isinstance(value, ast.Tuple) and len(value.elts) == len(target.elts):
                names |= _unpacked(one, value.elts[index], at, wanted)
            elif isinstance(one, ast.Name) and one.id in wanted:
                names[one.id] = Given(value, at, element=index)
    return names


def _of_header(scope: Scope, node: ast.AST, wanted: frozenset[str]) -> dict[str, Given | str]:
    """Return what the head of a compound statement gives to names: walrus, loop variable, `as`."""
    names: dict[str, Given | str] = {}
    if isinstance(node, ast.ExceptHandler) and node.name in wanted:
        names[str(node.name)] = REASON
    at = replace(scope, statement=node, names={})
    for one in _named(node):
        if one.target.id in wanted:
            names[one.target.id] = Given(ast.BoolOp(ast.Or(), [one.value]), at)  # it is not empty
    if isinstance(node, ast.For):
        for one in ast.walk(node.target):
            if isinstance(one, ast.Name) and one.id in wanted:
                names[one.id] = f"⟨{one.id}⟩"
    return names


@cache
def _named(node: ast.AST) -> tuple[ast.NamedExpr, ...]:
    """Return the `name := value` in the head of a statement."""
    heads = [getattr(node, name, None) for name in ("test", "iter", "subject", "value", "exc")]
    inside = (one for head in heads if isinstance(head, ast.expr) for one in ast.walk(head))
    return tuple(one for one in inside if isinstance(one, ast.NamedExpr))


def shown(node: ast.expr) -> str:
    """Return a field for an expression: its last name that says something."""
    return f"⟨{_words(node) or '…'}⟩"


def _words(node: ast.AST) -> str:
    match node:
        case ast.Name(id=name):
            return "reason" if name in ("error", "failed", "failure", "raised") else name.strip("_").lower()
        case ast.Attribute(value=ast.Name(id="error"), attr="strerror" | "msg"):
            return "reason"
        case ast.Attribute(attr=name) | ast.Subscript(slice=ast.Constant(value=str(name))):
            return OTHERS.get(name, name.strip("_"))
        case ast.Subscript(value=value) | ast.FormattedValue(value=value) | ast.Starred(value=value):
            return _words(value)
        case ast.Call(func=ast.Name(id="len")):
            return "number"
        case ast.Call(func=ast.Attribute(value=value, attr=name)) if name in (*TEXT_METHODS, *SAME):
            return _words(value)
        case ast.Call(func=ast.Attribute(value=ast.Constant(), attr="join"), args=[one]):
            return _words(one)
        case ast.Call(func=ast.Name(id=name), args=[]):
            return name.strip("_")
        case ast.Call(args=[one, *_]):
            return _words(one) or called(node)
        case ast.Call(func=ast.Attribute(attr=name)):
            return name.strip("_")
        case ast.GeneratorExp(elt=value) | ast.ListComp(elt=value) | ast.SetComp(elt=value):
            return _words(value)
        case ast.BinOp(left=left, right=right):
            return _words(left) or _words(right)
        case ast.JoinedStr(values=values):
            words = (_words(one) for one in values if isinstance(one, ast.FormattedValue))
            return next(filter(None, words), "")
        case ast.IfExp(body=body, orelse=other):
            return _words(body) or _words(other)
    return ""
