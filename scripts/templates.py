"""Texts of the source as templates, from its syntax trees.

`SourceTree.texts` follows a name back to what it was last given on each way to a statement, a call to what
the function returns, and a parameter to what its callers give. What only a run knows stands as `⟨name⟩`.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from scripts.trees import (
    REASON,
    TEXT_METHODS,
    Function,
    Given,
    Module,
    Scope,
    arguments,
    backwards,
    called,
    locals_of,
    names_in,
    parameters,
    shown,
)

MOST = 12  # texts of one expression; more of them are one field
DEPTH = 9  # calls and names that are followed
FIELD = re.compile(r"⟨([^⟨⟩]*)⟩")
UNKNOWN = "⟨…⟩"
SHOWN = {"nearest": ("Did you mean ⟨name⟩?",), "first_line": (REASON,)}


class SourceTree:
    """All modules below some folders."""

    def __init__(self, root: Path, folders: Iterable[str]) -> None:
        paths = [path for folder in folders for path in sorted((root / folder).rglob("*.py"))]
        self.modules = {one.name: one for one in (Module(path, root) for path in paths)}
        self.calls: dict[str, list[tuple[Module, ast.Call]]] = defaultdict(list)
        self._contexts: dict[tuple[ast.AST, tuple[ast.expr, ...]], list[Scope]] = {}
        kinds = (kind for one in self.modules.values() for kind in one.classes.values())
        self._methods = Counter(one.name for kind in kinds for one in kind.body if isinstance(one, Function))
        for module in self.modules.values():
            for node in module.nodes:
                if isinstance(node, ast.Call):
                    self.calls[called(node)].append((module, node))
        self._attributes = self._given_attributes()

    def _given_attributes(self) -> dict[str, list[tuple[ast.expr, Scope]]]:
        """Return the texts that attributes are made with, where one class alone has a field of that name."""
        found: dict[str, list[tuple[ast.expr, Scope]]] = defaultdict(list)
        makers: dict[str, set[str]] = defaultdict(set)
        for name, calls in self.calls.items():
            for module, call in calls:
                for one in call.keywords:
                    makers[str(one.arg)].add(name)
                    if _is_text(one.value) or isinstance(one.value, ast.Name):
                        found[str(one.arg)].append((one.value, Scope(module, call)))
        kinds = {name for module in self.modules.values() for name in module.classes}
        return {name: found[name] for name, by in makers.items() if len(by) == 1 and by <= kinds}

    def defined(self, module: Module, name: str) -> tuple[Module, str] | None:
        """Return the module that defines a global name of this one, and its name there."""
        for _ in range(3):
            if name in module.functions or name in module.constants or name in module.classes:
                return module, name
            home, name = module.imports.get(name, ("", ""))
            if home not in self.modules:
                return None
            module = self.modules[home]
        return None

    def ways(self, scope: Scope, nodes: Iterable[ast.expr]) -> list[Scope]:
        """Return a scope for each way to its statement on which the names of these expressions differ."""
        wanted = frozenset(name for node in nodes for name in names_in(node)) - scope.names.keys()
        found = []
        for names in itertools.islice(backwards(scope, scope.statement, wanted), 4 * MOST):
            found.extend(self._by_returns(replace(scope, names={**scope.names, **names})))
        return found

    def _by_returns(self, scope: Scope) -> list[Scope]:
        """Return the scope with names that are elements of one call, once for each tuple that it returns."""
        for name, value in scope.names.items():
            if isinstance(value, Given) and value.element is not None and isinstance(value.node, ast.Call):
                found = []
                for tuple_, at in self._returned(value.node, value.at):
                    if isinstance(tuple_, ast.Tuple):
                        names = {
                            other: Given(tuple_.elts[one.element], at)
                            for other, one in scope.names.items()
                            if isinstance(one, Given)
                            and one.node is value.node
                            and one.element is not None
                            and one.element < len(tuple_.elts)
                        }
                        found += self._by_returns(replace(scope, names={**scope.names, **names}))
                names = {**scope.names, name: f"⟨{name}⟩"}
                return found or self._by_returns(replace(scope, names=names))
        return [scope]

    def texts(self, node: ast.expr, scope: Scope) -> list[str]:
        """Return the texts that an expression may be, without repetitions."""
        if scope.depth > DEPTH:
            return [shown(node)]
        texts = list(dict.fromkeys(self._texts(node, scope.deeper())))
        return texts if len(texts) <= MOST else [shown(node)]

    def _texts(self, node: ast.expr, scope: Scope) -> list[str]:
        match node:
            case ast.Constant(value=None):
                return [""]
            case ast.Constant(value=value):
                return [str(value)]
            case ast.JoinedStr(values=parts):
                return self._joined("", parts, scope)
            case ast.FormattedValue(value=value, format_spec=form):
                if (number := self._number(value, scope)) is not None:
                    return [format(number, self.texts(form, scope)[0] if form else "")]
                return self.part(value, scope)
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                texts = self._joined("", [left, right], scope)
                numbers = isinstance(right, ast.Constant) and not isinstance(right.value, str)
                return [shown(node)] if numbers or not any(FIELD.sub("", text) for text in texts) else texts
            case ast.IfExp(body=body, orelse=other):
                return self.texts(body, scope) + self.texts(other, scope)
            case ast.BoolOp(op=ast.Or(), values=values):
                return [text for value in values for text in self.texts(value, scope) if text]
            case ast.BoolOp(op=ast.And(), values=values):
                return ["", *self.texts(values[-1], scope)]
            case ast.NamedExpr(value=value):
                return self.texts(value, scope)
            case ast.Name(id=name):
                return self._name(name, scope)
            case ast.Call():
                return self._call(node, scope)
            case ast.Attribute(attr=name) if given := self._attributes.get(name):
                texts = [
                    text for one, at in given for text in self.texts(one, replace(at, depth=scope.depth))
                ]
                return texts if all(text.count(" ") > 1 for text in texts) else [shown(node)]
            case ast.Subscript(value=ast.Name() as value, slice=place) if (cut := _cut(place)) is not None:
                texts = self.texts(value, scope)
                if texts and not any(map(FIELD.search, texts)):
                    return [text[cut] for text in texts]
                return [shown(node)]
            case ast.Subscript(value=ast.Name(id=name)) if found := self._constant(name, scope):
                return self._entries(*found) or [shown(node)]
            case ast.Subscript(value=ast.Dict() as table):
                return self._entries(table, scope)
        return [shown(node)]

    def part(self, node: ast.expr, scope: Scope) -> list[str]:
        """Return the texts of a field of an f-string: its name, unless words stand for it."""
        texts = self.texts(node, scope)
        stands = all(has_words(text) or not FIELD.search(text) or text.startswith(" ") for text in texts)
        return texts if stands and any(texts) else [shown(node)]

    def _joined(self, between: str, nodes: Iterable[ast.expr], scope: Scope) -> list[str]:
        parts = [self.texts(node, scope) for node in nodes]
        number = 1
        for index, texts in enumerate(parts):
            number *= len(texts)
            if number > MOST:
                parts[index] = [UNKNOWN]
        return [between.join(filter(None, texts)) for texts in itertools.product(*parts)]

    def _name(self, name: str, scope: Scope) -> list[str]:
        if name in scope.names:
            value = scope.names[name]
            if isinstance(value, str):
                return [value]
            at = replace(value.at, depth=max(scope.depth, value.at.depth))
            return self.texts(value.node, at) if value.element is None else [f"⟨{name}⟩"]
        if found := self._constant(name, scope):
            node, at = found
            return self.texts(node, at) if _is_text(node) else [f"⟨{name.strip('_').lower()}⟩"]
        if self.defined(scope.module, name):
            return [f"⟨{name}⟩"]
        ways = self.ways(scope, [ast.Name(name)])
        texts = [text for way in ways if name in way.names for text in self._name(name, way)]
        return texts or [f"⟨{name}⟩"]

    def _constant(self, name: str, scope: Scope) -> tuple[ast.expr, Scope] | None:
        home = self.defined(scope.module, name)
        if home is None or home[1] not in home[0].constants:
            return None
        statement = home[0].constants[home[1]]
        return statement.value, Scope(home[0], statement, depth=scope.depth)

    def _number(self, node: ast.expr, scope: Scope) -> int | float | None:
        """Return the number of a constant."""
        if isinstance(node, ast.Name) and node.id.isupper() and (found := self._constant(node.id, scope)):
            value = getattr(found[0], "value", None)
            return value if isinstance(value, (int, float)) else None
        return None

    def _entries(self, node: ast.expr, scope: Scope) -> list[str]:
        """Return the texts that a table may give."""
        if not isinstance(node, ast.Dict) or len(node.values) > MOST // 2:
            return []
        texts = [text for value in node.values for text in self.texts(value, scope)]
        return texts if all(map(has_words, texts)) else []

    def _call(self, node: ast.Call, scope: Scope) -> list[str]:
        name = called(node)
        match node:
            case ast.Call(func=ast.Attribute(value=base, attr=method)) if method in TEXT_METHODS:
                texts = self.texts(base, scope)
                change = {"strip": str.strip, "lower": str.lower}.get(method, str)
                return [text if FIELD.search(text) else change(text) for text in texts]
            case ast.Call(
                func=ast.Attribute(value=ast.Constant(value=str(between)), attr="join"), args=[given]
            ):
                return self._list(between, given, scope)
            case ast.Call(func=ast.Attribute(value=base, attr="format")):
                return [re.sub(r"\{[^}]*\}", UNKNOWN, text) for text in self.texts(base, scope)]
            case ast.Call(func=ast.Name(id="str" | "next" | "repr"), args=[one, *_]):
                return self.texts(one, scope)
            case ast.Call(func=ast.Name(id="filter"), args=[_, one]):
                return self.texts(one, scope)
            case ast.Call(func=ast.Name(id="map"), args=[ast.Name() as function, one]):
                texts = self.texts(ast.Call(function, [one], []), scope)
                return [text for text in texts if text]
        if name == "counted":
            noun = self.texts(node.args[1], scope)[0]
            plural = self.texts(node.args[2], scope)[0] if len(node.args) > 2 else f"{noun}s"
            return [f"⟨number⟩ {plural}"]
        if name in SHOWN:
            return list(SHOWN[name])
        if name == "some_of":
            return self._list(", ", node.args[0], scope)
        texts = [text for value, at in self._returned(node, scope) for text in self.texts(value, at)]
        return texts if texts and all(has_words(text) or not text for text in texts) else [shown(node)]

    def _list(self, between: str, node: ast.expr, scope: Scope) -> list[str]:
        """Return the texts of a list that is joined: its elements, or one of them for all."""
        match node:
            case ast.Call(func=ast.Name(id="filter"), args=[_, given]):
                return self._list(between, given, scope)
            case ast.Tuple(elts=elements) | ast.List(elts=elements):
                starred = [one.value for one in elements if isinstance(one, ast.Starred)]
                if starred:
                    return self._list(between, starred[0], scope)
                return self._joined(between, elements, scope)
            case ast.GeneratorExp(elt=one) | ast.ListComp(elt=one):
                return [f"{text}{between}…" if has_words(text) else text for text in self.texts(one, scope)]
            case ast.Subscript(value=value, slice=ast.Slice()):
                return self._list(between, value, scope)
            case ast.Name(id=name) if name not in scope.names and not self.defined(scope.module, name):
                for way in self.ways(scope, [node]):
                    if isinstance(value := way.names.get(name), Given) and value.element is None:
                        return self._list(between, value.node, value.at)
        return [shown(node)]

    def _returned(self, node: ast.Call, scope: Scope) -> Iterator[tuple[ast.expr, Scope]]:
        """Yield what the function of a call returns, each with its scope."""
        found = self._callee(node, scope.module)
        if found is None or scope.depth > DEPTH:
            return
        module, function = found
        names = arguments(module, function, node, scope)
        for one in ast.walk(function):
            if isinstance(one, ast.Return) and one.value is not None and module.function(one) is function:
                base = Scope(module, one, names, scope.depth + 1)
                for way in self.ways(base, [one.value]):
                    yield one.value, way

    def _callee(self, node: ast.Call, module: Module) -> tuple[Module, Function] | None:
        match node.func:
            case ast.Name(id=name):
                home = self.defined(module, name)
                if home and home[1] in home[0].functions:
                    return home[0], home[0].functions[home[1]]
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name):
                kind = module.within(node, ast.ClassDef)
                for one in kind.body if isinstance(kind, ast.ClassDef) else ():
                    if isinstance(one, Function) and one.name == name:
                        return module, one
        return None

    def callers(self, module: Module, function: Function) -> list[tuple[Module, ast.Call]]:
        """Return the calls of a function: by its name, or as an attribute where that name is its own."""
        kind = module.parents.get(function)
        found = []
        for where, call in self.calls[function.name]:
            if isinstance(call.func, ast.Name):
                home = self.defined(where, function.name)
                fits = home == (module, function.name) and not isinstance(kind, ast.ClassDef)
            else:
                own = where is module or self._methods[function.name] == 1
                fits = isinstance(kind, ast.ClassDef) and own
            if fits and where.function(call) is not function:
                found.append((where, call))
        return found

    def contexts(self, scope: Scope, nodes: Iterable[ast.expr]) -> list[Scope]:
        """Return the ways to a statement; where a caller's words are part of it, those of each caller."""
        nodes = tuple(nodes)
        key = scope.statement, nodes
        if key not in self._contexts:
            self._contexts[key] = []  # of a function that calls itself
            self._contexts[key] = self._of_callers(scope, nodes) or self.ways(scope, nodes)
        return self._contexts[key]

    def _of_callers(self, scope: Scope, nodes: tuple[ast.expr, ...]) -> list[Scope]:
        function = scope.module.function(scope.statement)
        if function is None or scope.depth > DEPTH:
            return []
        used = self._parameters_used(nodes, function)
        found: list[Scope] = []
        for where, call in self.callers(scope.module, function) if used else ():
            statement = where.within(call, ast.stmt)
            assert statement is not None
            outer = Scope(where, statement, depth=scope.depth + 1)
            given = arguments(scope.module, function, call, outer)
            needed = [
                value.node for name, value in given.items() if name in used and isinstance(value, Given)
            ]
            for way in self.contexts(outer, needed):
                found.append(replace(scope, names=arguments(scope.module, function, call, way)))
        if not any(self._says(one, name) for one in found for name in used):
            return []
        return [way for one in found for way in self.ways(one, nodes)]

    def _says(self, scope: Scope, name: str) -> bool:
        value = scope.names.get(name)
        return isinstance(value, Given) and any(has_words(text) for text in self.texts(value.node, value.at))

    def _parameters_used(self, nodes: Iterable[ast.expr], function: Function) -> set[str]:
        """Return the parameters of a function that are part of these expressions on some way to it."""
        names = {one.arg for one in parameters(function)} - {"self", "cls"}
        left, used, seen = list(nodes), set[str](), set[str]()
        local = locals_of(function)
        while left:
            new = names_in(left.pop()) - seen
            seen |= new
            used |= new & names
            left += [local[name] for name in new & local.keys()]
        return used


def has_words(text: str) -> bool:
    """Return whether a text says more than its fields: it has none, or a word beside them."""
    word = r"(?<!\S)[A-Za-z]{2,}(?!\S)" if FIELD.search(text) else "[A-Za-z]{2}"
    return bool(re.search(word, FIELD.sub("⟨⟩", text)))


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, (ast.JoinedStr, ast.BinOp, ast.IfExp)) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def _cut(node: ast.expr) -> int | slice | None:
    """Return the part of a text that an index names: `[0]`, `[1:]`."""
    match node:
        case ast.Constant(value=int(place)):
            return place
        case ast.Slice(lower=ast.Constant(value=int(first)), upper=None, step=None):
            return slice(first, None)
    return None
