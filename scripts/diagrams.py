"""Draw docs/drawn: the way and the life of a run, the rooms of trainer/. `scripts/reference` writes them.

The rooms and their floors are those of tests/test_imports.py, the states those of trainer/runs/record.py.
Each drawing has a ground of its own and follows the reader's light or dark scheme.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import get_args
from xml.sax.saxutils import escape

from tests.test_imports import floor
from trainer.runs.record import State

OUT = Path(__file__).resolve().parents[1] / "docs" / "drawn"
STYLE = """
  svg { --ground: #fff; --ink: #1f2328; --soft: #59636e; --line: #8c959f }
  svg { --box: #f6f8fa; --edge: #d1d9e0; --mark: #0969da }
  @media (prefers-color-scheme: dark) {
    svg { --ground: #0d1117; --ink: #e6edf3; --soft: #9da7b1; --line: #768390 }
    svg { --box: #161b22; --edge: #3d444d; --mark: #58a6ff }
  }
  .ground { fill: var(--ground); stroke: var(--edge) }
  .box { fill: var(--box); stroke: var(--edge) }
  .lane { fill: none; stroke: var(--edge); stroke-dasharray: 4 4 }
  text { font: 13px system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", sans-serif }
  text { fill: var(--ink) }
  .name { font-weight: 600 }
  .head { font-weight: 600; fill: var(--mark) }
  .soft { font-size: 12px; fill: var(--soft) }
  .arrow { fill: none; stroke: var(--line); stroke-width: 1.5; marker-end: url(#end) }
  .data { stroke: var(--mark) }
  #end path { fill: var(--line) }
"""
Point = tuple[float, float]


def drawings() -> dict[str, str]:
    """Return each drawing by the name of its file."""
    return {"run.svg": run(), "rooms.svg": rooms(), "life.svg": life()}


def write() -> None:
    """Write the drawings."""
    OUT.mkdir(exist_ok=True)
    for name, text in drawings().items():
        (OUT / name).write_text(text, encoding="utf-8")


def picture(title: str, width: int, height: int, parts: Iterable[str]) -> str:
    """Return a drawing on its ground."""
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img">',
        f"<title>{escape(title)}</title>",
        f"<style>{STYLE}</style>",
        '<defs><marker id="end" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7"',
        'orient="auto"><path d="M0 0 8 4 0 8z"/></marker></defs>',
        f'<rect class="ground" x=".5" y=".5" width="{width - 1}" height="{height - 1}" rx="8"/>',
        *parts,
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def words(at: Point, text: str, kind: str = "", anchor: str = "start") -> str:
    """Return a line of text."""
    return f'<text x="{at[0]:g}" y="{at[1]:g}" class="{kind}" text-anchor="{anchor}">{escape(text)}</text>'


def box(x: float, y: float, width: float, lines: Sequence[str], *, height: float = 0) -> str:
    """Return a box with a name and lines below it."""
    height = height or 18 + 17 * len(lines)
    first = y + height / 2 - 17 * (len(lines) - 1) / 2 + 4
    texts = [
        words((x + width / 2, first + 17 * number), line, "soft" if number else "name", "middle")
        for number, line in enumerate(lines)
    ]
    outline = f'<rect class="box" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6"/>'
    return "\n".join([outline, *texts])


def arrow(*points: Point, data: bool = False) -> str:
    """Return an arrow through points; `data`: bytes that go to or come from S3."""
    path = " L".join(f"{x:g} {y:g}" for x, y in points)
    return f'<path class="arrow{" data" if data else ""}" d="M{path}"/>'


# --- the way of a run

DESK, MACHINE, S3 = (20, 240), (330, 240), (640, 220)  # x and width of the lanes
STEPS: tuple[tuple[tuple[int, int], int, tuple[str, str]], ...] = (  # lane, y, name and what it does
    (DESK, 52, ("resolve", "code and inputs by hash")),
    (DESK, 122, ("plan", "offers, time, dollars, deadline")),
    (DESK, 192, ("register", "manifest, index, record")),
    (DESK, 262, ("drive", "deadline armed, then CreateFleet")),
    (MACHINE, 262, ("bootstrap.sh", "its timer first, then packages")),
    (MACHINE, 332, ("agent", "inputs by hash, smoke test")),
    (MACHINE, 402, ("command", "trainer, script or refresh")),
    (MACHINE, 472, ("power-off", "which ends the instance")),
    (DESK, 472, ("settle", "models verified, “terminated” seen")),
    (DESK, 542, ("receipt", "outcome, dollars, proof")),
    (S3, 52, ("code/  raw/", "")),
    (S3, 192, ("runs/<run>/", "")),
    (S3, 332, ("raw/  code/", "")),
    (S3, 402, ("live/  attempts/  models/", "")),
    (S3, 472, ("lease, result, models", "")),
)


def run() -> str:
    """Draw the way of a run between desk, machine and S3."""
    lanes = (
        (DESK, "at the desk, or in control"),
        (MACHINE, "on the machine"),
        (S3, "in S3, the only shared memory"),
    )
    parts = [
        f'<rect class="lane" x="{x - 8}" y="16" width="{wide + 16}" height="592" rx="8"/>\n'
        + words((x + wide / 2, 38), head, "head", "middle")
        for (x, wide), head in lanes
    ]
    for (x, wide), y, (name, does) in STEPS:
        parts.append(box(x, y, wide, [name, does] if does else [name], height=50))

    def down(lane: tuple[int, int], top: int, bottom: int) -> str:
        return arrow((lane[0] + lane[1] / 2, top + 50), (lane[0] + lane[1] / 2, bottom))

    def across(y: int, start: tuple[int, int], end: tuple[int, int], *, data: bool = True) -> str:
        right = start < end
        return arrow(
            (start[0] + start[1] * right, y + 25), (end[0] + end[1] * (not right), y + 25), data=data
        )

    parts += [down(DESK, y, y + 70) for y in (52, 122, 192, 472)]
    parts += [down(DESK, 262, 472)]
    beside = DESK[0] + DESK[1] / 2 - 10
    parts += [
        words((beside, 388), "observe,", "soft", "end"),
        words((beside, 404), "decide, act", "soft", "end"),
    ]
    parts += [down(MACHINE, y, y + 70) for y in (262, 332, 402)]
    parts += [across(52, DESK, S3), across(192, DESK, S3), across(262, DESK, MACHINE, data=False)]
    parts += [across(332, S3, MACHINE), across(402, MACHINE, S3), across(472, MACHINE, DESK, data=False)]
    parts += [arrow((S3[0] + S3[1] / 2, 522), (S3[0] + S3[1] / 2, 567), (DESK[0] + DESK[1], 567), data=True)]
    return picture("The way of a run between the desk, the machine and S3", 880, 624, parts)


# --- the rooms

ROOMS = {  # what each room holds, in three or four words
    "aws": "access, places, outputs",
    "attach": "a shell on a machine",
    "bars": "which bars train and test",
    "base": "errors, files, strict JSON",
    "cli": "verbs, and what they draw",
    "cluster": "queue of several machines",
    "control": "carries a run out",
    "data": "bars, features, splits",
    "job": "what is asked, its pieces",
    "launch": "all before the machine",
    "machines": "types, prices, memory",
    "models": "homes of models",
    "node": "what runs on a machine",
    "rehearsal": "the embedded AWS",
    "retrains": "schedules, published jobs",
    "runs": "a run's life, decided purely",
    "store": "models as files",
    "targets": "homes of targets",
    "train": "training on this machine",
}


def rooms() -> str:
    """Draw the rooms of trainer/ by floors: a room imports only rooms below its own."""
    by_floor: dict[int, list[str]] = {}
    for room in sorted(ROOMS):
        by_floor.setdefault(floor(room), []).append(room)
    wide, high, gap = 184, 46, 10
    widest = max(map(len, by_floor.values()))
    width = 40 + widest * (wide + gap) - gap
    parts = []
    for row, number in enumerate(sorted(by_floor, reverse=True)):
        here = by_floor[number]
        left = (width - len(here) * (wide + gap) + gap) / 2
        for column, room in enumerate(here):
            x, y = left + column * (wide + gap), 20 + row * (high + gap)
            parts.append(box(x, y, wide, [room, ROOMS[room]], height=high))
    title = "The rooms of trainer by floors: each imports only rooms on floors below its own"
    return picture(title, width, 30 + len(by_floor) * (high + gap), parts)


# --- the life of a run

STATES: dict[str, tuple[int, int, str]] = {  # x, y and what holds there
    "starting": (20, 60, "asks for machines, or waits in line"),
    "running": (340, 60, "leases and progress come in"),
    "recovering": (340, 200, "every instance is seen to go"),
    "ending": (730, 60, "every instance is being ended"),
    "closed": (730, 200, "the receipt is written"),
}
PASSES: tuple[tuple[tuple[Point, ...], Point, str], ...] = (  # points, place and words of the label
    (((260, 85), (340, 85)), (270, 77), "AWS's ids"),
    (((580, 77), (730, 77)), (590, 69), "result, stop, deadline,"),
    (((580, 77), (730, 77)), (590, 94), "budget"),
    (((460, 110), (460, 200)), (470, 159), "machine lost"),
    (((340, 225), (140, 225), (140, 110)), (150, 176), "all gone: the next attempt"),
    (((580, 225), (690, 225), (690, 102), (730, 102)), (590, 217), "no attempt left"),
    (((140, 60), (140, 34), (850, 34), (850, 60)), (150, 26), "refused for good, or the wait is over"),
    (((850, 110), (850, 200)), (860, 159), "all gone, proven"),
)


def life() -> str:
    """Draw the states of a run and what leads from one to the next."""
    assert set(STATES) == set(get_args(State)), "a state without a place in the drawing"
    parts = [box(x, y, 240, [name, does], height=50) for name, (x, y, does) in STATES.items()]
    parts += [arrow(*points) for points in dict.fromkeys(points for points, _, _ in PASSES)]
    parts += [words(at, text, "soft") for _, at, text in PASSES]
    return picture("The states of a run and what leads from one to the next", 990, 270, parts)
