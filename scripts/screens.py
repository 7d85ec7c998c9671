"""Make the output that the documentation shows, by real commands against an embedded AWS of its own.

    scripts/screens [--data DIR] [--width N]     # docs/screens/60.svg, 80.svg and 120.svg: about five minutes
    scripts/screens --samples [--data DIR]       # the samples in README and docs: about five minutes

A picture shows what a terminal (pty) of so many columns shows: a launch in the middle of its training and at
its end, then status, models list, logs --metrics and predict. A sample lies between `<!-- made: NAME -->` and
`<!-- end -->`, as the tables of docs/reference.md do.
"""

from __future__ import annotations

import argparse
import fcntl
import io
import json
import os
import pty
import re
import select
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from scripts.reference import PART

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "docs" / "screens"
WIDTHS = (60, 80, 120)
LINES = 60
MIDDLE = re.compile(r"(?:4|5|6)\d%   [\dms]+ left")  # of the training
TOKENS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\n|\r|[^\x1b\n\r]+")
MOST_SECONDS = 600.0
# rich's own, without the fonts that a page would fetch from elsewhere.
SVG = """<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
    <style>
    .{unique_id}-matrix {{ font-family: Menlo, Consolas, "DejaVu Sans Mono", monospace;
        font-size: {char_height}px; line-height: {line_height}px; }}
    .{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: arial; }}
    {styles}
    </style>
    <defs>
    <clipPath id="{unique_id}-clip-terminal">
    <rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
    </clipPath>
    {lines}
    </defs>
    {chrome}
    <g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
    {backgrounds}
    <g class="{unique_id}-matrix">
    {matrix}
    </g>
    </g>
</svg>
"""


class Screen:
    """The lines of a terminal with their colours, by what rich writes: up, clear line, return."""

    def __init__(self) -> None:
        self.rows, self._row = [""], 0

    def feed(self, written: str) -> None:
        """Write to the terminal."""
        for token in TOKENS.findall(written):
            if token == "\n":
                self._row += 1
                self.rows += [""] * (self._row + 1 - len(self.rows))
            elif match := re.fullmatch(r"\x1b\[(\d*)A", token):
                self._row = max(0, self._row - int(match[1] or 1))
            elif token == "\x1b[2K":
                self.rows[self._row] = ""
            elif token.endswith("m") or not token.startswith(("\x1b", "\r")):
                self.rows[self._row] += token

    def text(self) -> str:
        """Return what is on the screen, with colours."""
        return "\n".join(self.rows).strip("\n")


def plain(text: str) -> str:
    """Return a text without its colours and the spaces at the ends of lines."""
    return "\n".join(line.rstrip() for line in re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines())


class Desk:
    """Commands at terminals of one width, with a home of their own."""

    def __init__(self, folder: Path, width: int) -> None:
        self._folder, self._width = folder, width

    @property
    def home(self) -> Path:
        """Return the embedded AWS's folder."""
        return self._folder / "home"

    def _start(self, words: tuple[str, ...], **streams: int) -> subprocess.Popen[bytes]:
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("AWS_", "MAYFLY_", "NO_COLOR"))
        }
        own = {"MAYFLY_HOME": str(self.home), "TERM": "xterm-256color", "PYTHONPATH": str(ROOT)}
        own["PATH"] = f"{ROOT / '.venv' / 'bin'}{os.pathsep}{kept.get('PATH', '')}"
        command = [sys.executable, "-m", "trainer.cli.main", *words]
        return subprocess.Popen(command, cwd=self._folder, env=kept | own, **streams)

    @property
    def folder(self) -> Path:
        """Return the folder where its commands are typed."""
        return self._folder

    def piped(self, *words: str, code: int = 0) -> str:
        """Run a command to its end without a terminal; return what it wrote, the story first.

        `code`: the exit code that it has to have.
        """
        process = self._start(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        out, story = process.communicate(timeout=MOST_SECONDS)
        if process.returncode != code:
            raise SystemExit(
                f"{' '.join(words)} ended with exit code {process.returncode}:\n{story.decode()}"
            )
        return f"{story.decode()}{out.decode()}"

    def run(self, *words: str, until: re.Pattern[str] | None = None) -> tuple[str, str]:
        """Run a command to its end; return its screen when `until` was first seen on it, and in the end."""
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, self._width, 0, 0))
        process = self._start(words, stdin=theirs, stdout=theirs, stderr=theirs)
        os.close(theirs)
        screen, middle, began = Screen(), "", time.monotonic()
        while block := _read(ours):
            screen.feed(block)
            if until and not middle and until.search(plain(screen.text())):
                middle = screen.text()
            if time.monotonic() - began > MOST_SECONDS:
                process.terminate()
                raise SystemExit(f"{' '.join(words)} takes longer than {MOST_SECONDS:.0f} s")
        os.close(ours)
        if code := process.wait():
            raise SystemExit(f"{' '.join(words)} ended with exit code {code}:\n{plain(screen.text())}")
        return middle, screen.text()


def _read(terminal: int) -> str:
    """Return what was written, waiting for it; '' once nobody can write any more."""
    select.select([terminal], [], [])
    try:
        return os.read(terminal, 65536).decode(errors="replace")
    except OSError:
        return ""


def session(desk: Desk, folder: Path, data: list[str]) -> list[tuple[str, str]]:
    """Run the commands at a desk and return (command, screen) of each."""
    launch = ["launch", "--rehearse", "--instance", "g5.12xlarge", "--epochs", "2"]
    launch += ["--set", "data.bars=20000", *data]
    middle, end = desk.run(*launch, until=MIDDLE)
    run = next(line.split()[1] for line in plain(end).splitlines() if line.startswith("run "))
    candles = data[1] if data else str(desk.home / "demo-data")
    lines = end.splitlines()
    first = next(number for number, line in enumerate(lines) if "preflight" in line)
    # The plan is on the first.
    shown = [(launch, middle), ([*launch, "  # at its end"], "\n".join(lines[first:]))]
    for words in (
        ["status"],
        ["models", "list"],
        ["logs", run, "--metrics"],
        ["predict", "--run", run, "--data", candles, "--last", "2"],
    ):
        words = [*words, "--rehearse"]
        shown.append((words, desk.run(*words)[1]))
    return [
        (f"mayfly {' '.join(words)}".replace(str(folder), "~"), screen.replace(str(folder), "~"))
        for words, screen in shown
    ]


def picture(shown: list[tuple[str, str]], width: int) -> str:
    """Return screens below each other as one SVG."""
    console = Console(
        record=True, width=width, file=io.StringIO(), force_terminal=True, color_system="truecolor"
    )
    for command, screen in shown:
        console.print(Text(f"$ {command}", style="bold cyan"))
        console.print(Text.from_ansi(screen), end="\n\n")
    return console.export_svg(
        title=f"{width} columns", theme=MONOKAI, code_format=SVG, unique_id=f"mayfly-{width}"
    )


def demo(desk: Desk, candles: Path) -> str:
    """Return the receipt of the demo's run, without its blank lines."""
    data = ["--data", str(candles)] if candles.exists() else []
    words = ["--job", str(ROOT / "examples" / "crypto-lstm.toml"), "--instance", "p3.8xlarge"]
    _, end = desk.run("launch", "--rehearse", *words, "--set", "data.set=demo", *data)
    lines = [line for line in plain(end).splitlines() if line.strip()]
    first = next(number for number, line in enumerate(lines) if line.startswith("  outcome"))
    return "\n".join(lines[first : lines.index("look at it:")])


def predictions(desk: Desk, candles: Path) -> str:
    """Return the first forecast of the demo's models on their last bars, as a file has it."""
    run = str(json.loads(desk.piped("status", "--rehearse", "--json"))["runs"][0]["run_id"])
    data = str(candles) if candles.exists() else str(desk.home / "demo-data")
    told = desk.piped("predict", "--run", run, "--data", data, "--last", "1", "--rehearse")
    lines = told.splitlines()
    header = next(number for number, line in enumerate(lines) if line.startswith("model,"))
    return "\n".join(lines[header : header + 2])


def ranks(desk: Desk, candles: Path) -> str:
    """Return what two ranks on this machine's cores print of their links, and of the last step shown."""
    panel, job = candles / "SP500_1d_2012-2018.parquet", str(ROOT / "examples" / "sp500-transformer.toml")
    words = ["train", "--job", job, "--out", "models", "--workers", "2"]
    if panel.exists():
        words += ["--data", str(panel)]
    else:
        made, symbols = str(desk.home.parent / "panel"), ",".join(f"S{number:02}" for number in range(40))
        series = ["--out", made, "--symbols", symbols, "--bars", "1500", "--timeframe", "1d"]
        subprocess.run(
            [sys.executable, "-m", "trainer.data.synthetic", *series], check=True, capture_output=True
        )
        words += ["--data", made, "--set", "data.calendar=24x7"]
    lines = desk.piped(*words).splitlines()
    links = next(line for line in lines if " all-reduce " in line)
    steps = [line for line in lines if re.search(r"  step \d+/\d+  ", line)]
    return f"{links}\n{steps[-1]}"


def quick_start(desk: Desk, _: Path) -> str:
    """Return what the quick start's commands print, of the launch the beginning of its receipt."""
    source = ["--rehearse", "--timeframe", "1h", "--since", "2025-01-01", "--out", "candles/"]
    shown = []
    for words in (["data", "fetch", "BTC-USD", "ETH-USD", *source], ["data", "check", "candles/"]):
        shown += [f"$ mayfly {' '.join(words)}", desk.piped(*words).strip("\n"), ""]
    launch = ["launch", "--rehearse", "--data", "candles/"]
    lines = [line for line in desk.piped(*launch).splitlines() if line.strip()]
    first, last = (
        next(number for number, line in enumerate(lines) if line.startswith(start))
        for start in ("  outcome", "  models")
    )
    return "\n".join([*shown, f"$ mayfly {' '.join(launch)}", "...", *lines[first:last]])


def checks(desk: Desk, _: Path) -> str:
    """Return the table of `mayfly doctor`."""
    lines = desk.piped("doctor", "--rehearse").splitlines()
    return "\n".join(line for line in lines if re.match(r"   check|[✓!✗?] ", line))


def refused_budget(desk: Desk, candles: Path) -> str:
    """Return the error of a launch whose budget is too small."""
    words = ["--job", str(ROOT / "examples" / "crypto-lstm.toml"), "--instance", "g6.xlarge"]
    words += ["--data", str(candles)] if candles.exists() else []
    told = desk.piped("launch", "--rehearse", *words, "--budget", "0.01", "-y", code=104)
    return next(line for line in told.splitlines() if line.startswith("error: "))


def failed_script(desk: Desk, _: Path) -> str:
    """Return what the receipt of a script that fails says of the reason."""
    text = 'print("epoch 1", flush=True)\nraise SystemExit("no column named close")\n'
    (desk.folder / "train.py").write_text(text)
    words = ["--script", "train.py", "--instance", "g6.xlarge", "--max-duration", "30m"]
    lines = desk.piped("launch", "--rehearse", *words, "-y", code=100).splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("  outcome"))
    tail = next(number for number, line in enumerate(lines) if line.startswith("  last lines"))
    ends = [lines.index("", begin) for begin in (first, tail)]
    return "\n".join([*lines[first : ends[0]], *lines[tail : ends[1]]])


def lost_machine(desk: Desk, candles: Path) -> str:
    """Return the events of a run that lost its machine and went on with another."""
    words = ["--job", str(ROOT / "examples" / "crypto-lstm.toml"), "--instance", "g6.xlarge"]
    words += ["--data", str(candles)] if candles.exists() else []
    desk.piped("launch", "--rehearse", *words, "--interrupt", "40%", "-y")
    lines = desk.piped("status", "last", "--events", "--rehearse").splitlines()
    return "\n".join(lines[next(number for number, line in enumerate(lines) if line.startswith("at ")) :])


SAMPLES: dict[str, tuple[str, Callable[[Desk, Path], str]]] = {  # made in this order
    "receipt of the demo": ("README.md", demo),
    "predictions": ("docs/runs.md", predictions),
    "ranks": ("docs/training.md", ranks),
    "quick start": ("docs/quick-start.md", quick_start),
    "refused budget": ("docs/runbook.md", refused_budget),
    "failed script": ("docs/runbook.md", failed_script),
    "lost machine": ("docs/runbook.md", lost_machine),
    "doctor": ("docs/runbook.md", checks),  # of what was rehearsed above
}


def renew_samples(desk: Desk, candles: Path) -> None:
    """Write the samples of the pages anew."""
    for name, (place, make) in SAMPLES.items():
        made, page = f"```text\n{make(desk, candles)}\n```\n", ROOT / place

        def renewed(part: re.Match[str], name: str = name, made: str = made) -> str:
            return f"{part[1]}{part[2]}{made}" if part[1] == name else part[0]

        page.write_text(PART.sub(renewed, page.read_text(encoding="utf-8")), encoding="utf-8")
        print(f"{place}: {name}", file=sys.stderr)


def make_picture(width: int, data: str) -> None:
    """Write the picture of one width anew."""
    with at_a_desk(width) as (desk, folder):
        shown = session(desk, folder, ["--data", data] if data else [])
    (OUT / f"{width}.svg").write_text(picture(shown, width), encoding="utf-8")
    print(f"docs/screens/{width}.svg", file=sys.stderr)


@contextmanager
def at_a_desk(width: int) -> Iterator[tuple[Desk, Path]]:
    """Yield a desk and its folder; its embedded AWS ends with it."""
    with tempfile.TemporaryDirectory(prefix="mayfly-screens-") as folder:
        desk = Desk(Path(folder), width)
        try:
            yield desk, Path(folder)
        finally:
            desk.run("rehearse", "--stop")


def main() -> int:
    """Make the pictures or the samples anew."""
    parser = argparse.ArgumentParser(description="Make docs/screens and the samples from real rehearsals.")
    parser.add_argument("--data", default="", metavar="DIR", help="candles (default: the demo's)")
    parser.add_argument(
        "--width", type=int, action="append", metavar="N", help="columns (default: 60, 80 and 120)"
    )
    parser.add_argument("--samples", action="store_true", help="make the samples in README and docs instead")
    options = parser.parse_args()
    if options.samples:
        with at_a_desk(120) as (desk, _):
            renew_samples(desk, Path(options.data) if options.data else ROOT.parent / "shared/data/raw")
        return 0
    OUT.mkdir(exist_ok=True)
    for width in options.width or WIDTHS:
        make_picture(width, options.data)
    return 0


if __name__ == "__main__":
    sys.exit(main())
