"""Make tables of docs (reference, errors, cost, agents) and the drawings of docs/drawn from the source:
`scripts/reference`.

A made part of the page lies between `<!-- made: NAME -->` and `<!-- end -->`; the rest is written by hand. So
are the last columns of some tables, which a row keeps by its first cell. A new row has them empty, and
tests/test_reference.py asks for them.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from infra.stack_settings import RULES
from scripts import diagrams, messages, plans
from tests.infra.program import run_program
from trainer.aws.error_codes import ROWS
from trainer.base import errors
from trainer.base.arguments import Parser
from trainer.base.settings import keys_of
from trainer.cli.parser import build_parser
from trainer.data.feature_names import SETS
from trainer.data.feature_table import TABLE as FEATURES
from trainer.data.table import DataSettings
from trainer.job.agent import AgentSettings
from trainer.job.job import Job
from trainer.job.machine import MachineSettings
from trainer.job.script import ScriptSettings
from trainer.job.search import SearchSettings
from trainer.job.train import BATCH_OF_THE_MODEL, ExpertSettings, TrainSettings
from trainer.machines.compatibility import matrix
from trainer.models import MODELS
from trainer.targets import TARGETS
from trainer.train.__main__ import parser as train_parser

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "reference.md"
PART = re.compile(r"(?<=<!-- made: )([a-z ]+)( -->\n)(.*?)(?=<!-- end -->)", re.DOTALL)
TABLES = {
    "data": DataSettings,
    "agent": AgentSettings,
    "train": TrainSettings,
    "expert": ExpertSettings,
    "search": SearchSettings,
    "machine": MachineSettings,
    "script": ScriptSettings,
}
SHARED = 5  # a flag of so many commands is described once

Cells = Sequence[str]


def main() -> None:
    """Write the pages with their tables made anew, and the drawings."""
    diagrams.write()
    for page in (PAGE, messages.PAGE, plans.PAGE, plans.AGENTS_PAGE):
        page.write_text(renewed(page.read_text(encoding="utf-8")), encoding="utf-8")


def renewed(page: str) -> str:
    """Return the page with its tables made anew."""
    makers = {
        "plans": lambda _: plans.plans_of_jobs(),
        "plans of agents": lambda _: plans.plans_of_agents(),
        "plans of machines": lambda _: plans.plans_of_machines(),
        "commands": commands,
        "job keys": job_keys,
        "features": features,
        "feature sets": feature_sets,
        "stack settings": stack_settings,
        "resources": resources,
        "variables": variables,
        "exit codes": exit_codes,
        "aws errors": aws_errors,
        "compatibility": compatibility,
        "errors": lambda _: messages.index_of_errors(),
    }
    return PART.sub(lambda part: part[1] + part[2] + "\n" + makers[part[1]](part[3]) + "\n", page)


def table(head: Cells, rows: Iterable[Cells]) -> str:
    """Return a table."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"|{'|'.join(f' {cell} ' if cell else ' ' for cell in cells)}|\n" for cells in lines)


def kept(part: str) -> dict[str, list[str]]:
    """Return the rows of a part's table by their first cells."""
    rows = [line[1:-1].split("|") for line in part.split("\n") if line.startswith("| `")]
    return {row[0].strip(): [cell.strip() for cell in row] for row in rows}


def commands(_: str) -> str:
    """Return each command with its arguments; the flags of many commands stand at the top."""
    parsers = {words: parser for words, parser in _commands(build_parser(), "mayfly") if _arguments(parser)}
    parsers["mayfly train"] = train_parser("mayfly train")
    count = Counter(item for parser in parsers.values() for item in _arguments(parser))
    shared = {item for item, number in count.items() if number >= SHARED}
    text = table(("flag of many commands", "meaning"), sorted(map(list, shared)))
    for words, parser in parsers.items():
        own = [item for item in _arguments(parser) if item not in shared]
        also = ", ".join(name for name, _ in _arguments(parser) if (name, _) in shared)
        text += f"\n`{words}`" + (f", also {also}" if also else "") + "\n\n"
        text += table(("argument", "meaning"), own) if own else ""
    return text


def _commands(parser: Parser, words: str) -> Iterator[tuple[str, Parser]]:
    """Yield a parser and every one below it, with their words."""
    yield words, parser.filled()
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, below in action.choices.items():
                yield from _commands(below, f"{words} {name}")


def _arguments(parser: argparse.ArgumentParser) -> list[tuple[str, str]]:
    """Return the arguments of a parser as they are typed, with their help; no subcommands."""
    found = []
    for action in parser._actions:
        if not isinstance(
            action, (argparse._SubParsersAction, argparse._HelpAction, argparse._VersionAction)
        ):
            value = "" if action.nargs == 0 else action.metavar or "/".join(action.choices or [action.dest])
            name = f"{', '.join(action.option_strings)} {value}".strip()
            found.append((f"`{name}`", _cell(action.help or "")))
    return found


def features(_: str) -> str:
    """Return a table of the features: one row for all spans of a formula."""
    rows: dict[tuple[str, str, str], list[str]] = {}
    back: dict[tuple[str, str, str], list[str]] = {}
    for one in FEATURES.values():
        key = one.formula.replace("|", "\\|"), one.source, one.version
        rows.setdefault(key, []).append(f"`{one.name}`")
        back.setdefault(key, []).append(str(one.lookback))
    head = ("feature", "bars back", "formula", "source", "version")
    return table(
        head, ([", ".join(names), ", ".join(dict.fromkeys(back[key])), *key] for key, names in rows.items())
    )


def feature_sets(_: str) -> str:
    """Return a table of the sets of features."""
    rows = ([f"`set:{name}`", one.version, str(len(one.names)), one.help] for name, one in SETS.items())
    return table(("set", "version", "features", "has"), rows)


def job_keys(_: str) -> str:
    """Return a table for each table of a job; a model's and a target's keys with the names of their homes."""
    rows = [[f"`{key}`", _default(item.default), item.metadata["help"]] for key, item in keys_of(Job).items()]
    text = table(("in no table", "default", "meaning"), rows) + "\n"
    for name, settings in TABLES.items():
        keys = keys_of(settings).items()
        rows = [[f"`{key}`", _default(item.default), item.metadata["help"]] for key, item in keys]
        text += table((f"`[{name}]`", "default", "meaning"), rows) + "\n"
    for name, homes in (("model", MODELS), ("target", TARGETS)):
        of: dict[tuple[str, str, str], list[str]] = {}
        for home, kind in homes.items():
            for key, item in keys_of(kind).items():
                of.setdefault((key, _default(item.default), item.metadata["help"]), []).append(home)
        rows = [[f"`{key}`", ", ".join(of[key, *rest]), *rest] for key, *rest in of]
        text += table((f"`[{name}]`", "of", "default", "meaning"), rows) + "\n"
    return text.removesuffix("\n")


def _default(value: Any) -> str:
    """Return a default as a job file has it."""
    return "by model" if value == BATCH_OF_THE_MODEL else f"`{json.dumps(value)}`"


def stack_settings(_: str) -> str:
    """Return the settings of the stack, as Pulumi.yaml declares and infra/stack_settings.py checks them."""
    declared = yaml.safe_load((ROOT / "Pulumi.yaml").read_text(encoding="utf-8"))["config"]
    rows = []
    for key, one in declared.items():
        value = one["default"]
        shown = ", ".join(value) if isinstance(value, list) else value
        shown = json.dumps(value) if isinstance(value, (bool, dict)) else shown
        leaves = {name.partition(".")[2]: rule for name, rule in RULES.items() if name.startswith(f"{key}.")}
        rules = [f"`{leaf}` {rule.words}" for leaf, rule in leaves.items()]
        rule = _cell(RULES[key].words if key in RULES else "; ".join(rules))
        rows.append([f"`{key}`", "none" if shown == "" else f"`{shown}`", rule, one["description"]])
    return table(("setting", "default", "must be", "meaning"), rows)


def resources(part: str) -> str:
    """Return the number of resources of each type, in a region of three zones and without retrains."""
    types = [item.typ.replace(":", "/").split("/") for item in run_program().resources]
    count = Counter(f"`{kind[1]}.{kind[-1]}`" for kind in types if kind[0] == "aws")
    by_hand = kept(part)
    rows = [[kind, str(number), by_hand.get(kind, ["", "", ""])[2]] for kind, number in sorted(count.items())]
    return table(("resource", "number", "for"), rows)


def variables(part: str) -> str:
    """Return the environment variables: a table of those that people set, which is written by hand, then the
    names of the others that trainer.base.environment has, and of ours in any other file.
    """
    source = (ROOT / "trainer" / "base" / "environment.py").read_text(encoding="utf-8")
    texts = [node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant)]
    used = {text for text in texts if isinstance(text, str) and re.fullmatch(r"[A-Z][A-Z0-9_]*[A-Z]", text)}
    words = {
        word
        for folder in ("trainer", "infra", "scripts")
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and path.suffix != ".pyc"
        for word in re.findall(r"\b[A-Z][A-Z0-9_]*[A-Z]\b", path.read_text(encoding="utf-8"))
    }
    ours = {word for word in words if re.match(r"MAYFLY_(?!VALUE_)", word)}
    rows = {name: row for name, row in kept(part).items() if name.strip("`") in words}
    others = ", ".join(sorted({f"`{name}`" for name in used | ours} - rows.keys()))
    return table(("variable", "meaning", "default"), rows.values()) + f"\nSet by Mayfly: {others}.\n"


def exit_codes(_: str) -> str:
    """Return the exit codes, by the tree at the top of trainer/base/errors.py."""
    found = re.findall(r"([A-Z]\w+) +(\d+) +(.+)", errors.__doc__ or "")
    return table(("exit code", "error", "meaning"), [[code, f"`{name}`", said] for name, code, said in found])


def aws_errors(_: str) -> str:
    """Return AWS's error codes by their consequences for a launch."""
    of: dict[tuple[str, str, str, str], list[str]] = {}
    for meaning, codes in ROWS:
        step = meaning.next_step.replace("_", " ")
        code = str(meaning.error.exit_code)
        key = (meaning.error_class.replace("_", " "), code, step, _cell(meaning.remedy))
        of.setdefault(key, []).extend(f"`{code}`" for code in codes)
    return table(
        ("class", "exit code", "next step of a launch", "what to do", "codes"),
        [[*key, ", ".join(codes)] for key, codes in of.items()],
    )


def compatibility(_: str) -> str:
    """Return the three tables of trainer/machines/compatibility.toml."""
    chips = [
        [", ".join(one.families), one.gpu, one.system, one.capability, str(one.last_driver or "")]
        for one in matrix().chips
    ]
    images = [
        [f"`{one.line}`", one.index, str(one.driver), ", ".join(one.families) or "none"]
        for one in matrix().images
    ]
    builds = [
        [one.torch, one.index, ", ".join(one.capabilities), str(one.first_driver or "")]
        for one in matrix().builds
    ]
    return "\n".join(
        (
            table(("families", "GPU", "CPU", "compute capability", "last driver"), chips),
            table(("image line", "wheels", "driver", "named for"), images),
            table(("torch", "wheels", "capabilities", "first driver"), builds),
        )
    )


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split()).replace("%%", "%")


if __name__ == "__main__":
    main()
