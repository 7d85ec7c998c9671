"""The documentation's fenced blocks and commands: what README, docs and examples tell a reader to type."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "tests/live/README.md")),
    *sorted(page for folder in ("docs", "examples") for page in (ROOT / folder).rglob("*.md")),
]
SOURCES = sorted(path for kind in ("*.toml", "*.py") for path in (ROOT / "examples").rglob(kind))
FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"`([^`\n]+)`")
HEADER = re.compile(r"^[#\s]*(mayfly|python -m trainer\S*) (.*?)(?:\s{4,}.*)?$", re.MULTILINE)  # of a source
OPTIONAL = re.compile(r" ?\[([^\]]*)\]")
PROGRAMS = {  # command line -> what `main` calls it
    ("mayfly",): "mayfly",
    (".venv/bin/mayfly",): "mayfly",
    ("python", "-m", "trainer.launch"): "python -m trainer.launch",
    ("python", "-m", "trainer.train"): "python -m trainer.train",
}


@dataclass(frozen=True)
class Command:
    """A command of ours as a page has it: which program, and its words."""

    page: str
    program: str
    words: tuple[str, ...]

    def __str__(self) -> str:
        return shlex.join([self.program, *self.words])

    @property
    def verb(self) -> str:
        """Return the verb that it runs."""
        return self.words[0] if self.program == "mayfly" else self.program.rpartition(".")[2]

    @property
    def arguments(self) -> list[str]:
        """Return its words without the verb."""
        return list(self.words[1:] if self.program == "mayfly" else self.words)


def shell_lines(text: str) -> Iterator[str]:
    """Yield the lines of a page's shell blocks, those without a language; continued lines are joined."""
    for _, language, block in FENCE.findall(text):
        if not language:
            yield from (line.strip() for line in re.sub(r" *\\\n\s*", " ", block).splitlines())


def commands_of(page: Path, section: str = "") -> list[Command]:
    """Return our commands in a page's shell blocks, or in those below one heading, in their order."""
    text = page.read_text("utf-8")
    if section:
        text = re.split(r"^#+ \w", f"\n{text}".partition(f"\n{section}\n")[2], flags=re.MULTILINE)[0]
        assert text.strip(), f"{page.name} has no {section}"
    name = page.relative_to(ROOT).as_posix()
    return [command for line in shell_lines(text) for command in in_line(name, line)]


def block_of(page: str, language: str, words: str) -> str:
    """Return the block of a page that has these words."""
    blocks = FENCE.findall((ROOT / page).read_text("utf-8"))
    (found,) = [text for _, kind, text in blocks if kind == language and words in text]
    return str(found)


def all_commands() -> list[Command]:
    """Return every command of ours once: of shell blocks, of inline code, of examples' headers."""
    found = [command for page in PAGES for command in commands_of(page)]
    for page in PAGES:
        name = page.relative_to(ROOT).as_posix()
        for span in SPAN.findall(FENCE.sub("", page.read_text("utf-8"))):
            found += in_line(name, span) if span.startswith(("mayfly ", "python -m trainer")) else []
    for path in SOURCES:
        for program, rest in HEADER.findall(path.read_text("utf-8")):
            found += in_line(path.relative_to(ROOT).as_posix(), f"{program} {rest}")
    return list({(one.program, one.words): one for one in found}.values())


def in_line(page: str, line: str) -> list[Command]:
    """Return our commands in a line of shell, also those inside quotes: `ssh HOST 'mayfly ...'`.

    Our pages write `mayfly status | stop RUN` for two commands, and `receipts [RUN]` for with and without.
    """
    found = []
    for text in dict.fromkeys((OPTIONAL.sub("", line), OPTIONAL.sub(r" \1", line))):
        before: tuple[str, ...] = ()  # the program left of a `|`
        for ended_by_pipe, words in _simple(text):
            program = next((known for known in PROGRAMS if tuple(words[: len(known)]) == known), ())
            rest = words[len(program) :] if program else words if before else []
            if (program or before) and rest:
                found.append(Command(page, PROGRAMS[program or before], tuple(rest)))
            else:
                found += [one for word in words if " " in word for one in in_line(page, word)]
            before = (program or before) if ended_by_pipe else ()
    return list(dict.fromkeys(found))


def _simple(line: str) -> Iterator[tuple[bool, list[str]]]:
    """Yield the simple commands of a line of shell, and whether a `|` follows each."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|;&()")
    lexer.whitespace_split = True
    words: list[str] = []
    for token in [*lexer, ";"]:
        if set(token) <= set("|;&()"):
            yield token == "|", words
            words = []
        elif words or not re.match(r"[A-Z_]+=", token):  # a variable before a command is not its name
            words.append(token)
