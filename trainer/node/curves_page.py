"""Learning curves of a running node as a web page on its loopback, which `mayfly attach --tensorboard`
forwards.

If the image has TensorBoard, that is served instead. The page is made from the events that also go to S3; it
writes nothing. A node whose stack has attach = off serves nothing.
"""

from __future__ import annotations

import html
import importlib.util
import logging
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from trainer.node.shared import Node
from trainer.runs.keys import CURVES_PORT
from trainer.runs.training_events import LOSSES, EventReader

log = logging.getLogger("trainer.node")
HOST = "127.0.0.1"
REFRESH_SECONDS = 10
MOST_EVENTS_BYTES = 256 * 1024 * 1024
WIDTH, HEIGHT, MARGIN = 480, 160, 8  # of a model's picture
COLOURS = dict(zip(LOSSES, ("#888", "#06c"), strict=True))
_PAGE = """<!doctype html><meta charset="utf-8">
<meta http-equiv="refresh" content="{refresh}"><title>{title}</title>
<style>body{{font:14px sans-serif;margin:2em}}figure{{display:inline-block;margin:1em}}
svg{{border:1px solid #ccc}}</style>
<h1>{title}</h1><p>{legend}</p>{figures}
"""
Curves = Mapping[str, Mapping[int, Mapping[str, Any]]]  # piece -> epoch -> its losses


def serve_curves(node: Node, manifest: Mapping[str, Any], *, port: int = CURVES_PORT) -> int:
    """Serve the node's curves if its stack allows attaching; return the port, 0 for none. A failure is a log
    line.
    """
    if not manifest.get("attach") or node.rehearsal:
        return 0
    try:
        if importlib.util.find_spec("tensorboard") is not None:
            boards = node.work / "models" / "observed" / "tensorboard"
            where = ("--logdir", str(boards), "--host", HOST, "--port", str(port))
            subprocess.Popen(
                [sys.executable, "-m", "tensorboard.main", *where], cwd=node.work, start_new_session=True
            )
            return port
        server = ThreadingHTTPServer(
            (HOST, port), page_handler(node.status.identity.run_id, node.work / "events/events.jsonl")
        )
    except OSError as error:
        log.warning("the learning curves are not served: %s", error)
        return 0
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, name="curves", daemon=True).start()
    return int(server.server_port)


def page_handler(title: str, events: Path) -> type[BaseHTTPRequestHandler]:
    """Return a handler of `/` that refuses any Host header but loopback, as a guard against DNS rebinding."""

    class CurvesHandler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = self.headers.get("Host", "").rpartition(":")[0] or self.headers.get("Host", "")
            if self.path != "/" or asked not in (HOST, "localhost"):
                self.send_error(404)
                return
            body = page(title, read_curves(events)).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Log nothing: the node's log is for the training."""

    return CurvesHandler


def read_curves(events: Path) -> Curves:
    """Return the epochs of each piece so far; an epoch that was trained again replaces the first."""
    if not events.exists():
        return {}
    with events.open("rb") as file:
        lines = file.read(MOST_EVENTS_BYTES).splitlines()
    curves: dict[str, dict[int, Mapping[str, Any]]] = {}
    for event in EventReader().read(lines):
        if event["event"] == "epoch":
            curves.setdefault(event["piece"], {})[event["epoch"]] = event
    return curves


def page(title: str, curves: Curves) -> str:
    """Return the page: a picture for each piece."""
    legend = ", ".join(
        f'<span style="color:{COLOURS[loss]}">{loss.replace("_", " ")}</span>' for loss in LOSSES
    )
    figures = (
        "".join(_figure(piece, curves[piece]) for piece in sorted(curves)) or "<p>no epoch has ended yet</p>"
    )
    return _PAGE.format(refresh=REFRESH_SECONDS, title=html.escape(title), legend=legend, figures=figures)


def _figure(piece: str, epochs: Mapping[int, Mapping[str, Any]]) -> str:
    numbers = sorted(epochs)
    losses = {loss: [(number, epochs[number][loss]) for number in numbers] for loss in LOSSES}
    finite = {loss: [point for point in points if point[1] is not None] for loss, points in losses.items()}
    values = [value for points in finite.values() for _, value in points] or [0.0]
    box = Box(epochs=(numbers[0], numbers[-1]), losses=(min(values), max(values)))
    lines = "".join(
        _line([box.place(*point) for point in points], COLOURS[loss]) for loss, points in finite.items()
    )
    last = ", ".join(
        f"{loss.replace('_', ' ')} {points[-1][1]:.4f}" for loss, points in finite.items() if points
    )
    caption = html.escape(f"{piece}: epoch {numbers[-1]}, {last}")
    return (
        f'<figure><svg width="{WIDTH}"'
        f' height="{HEIGHT}">{lines}</svg><figcaption>{caption}</figcaption></figure>'
    )


@dataclass(frozen=True, kw_only=True)
class Box:
    """The spans of epochs and losses that a picture shows."""

    epochs: tuple[int, int]
    losses: tuple[float, float]

    def place(self, epoch: int, loss: float) -> tuple[float, float]:
        """Return a point's position in pixels from the upper left corner."""
        return _share(epoch, self.epochs, WIDTH), HEIGHT - _share(loss, self.losses, HEIGHT)


def _share(value: float, span: tuple[float, float], length: int) -> float:
    share = (value - span[0]) / (span[1] - span[0]) if span[1] > span[0] else 0.5
    return MARGIN + share * (length - 2 * MARGIN)


def _line(places: Sequence[tuple[float, float]], colour: str) -> str:
    drawn = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2" fill="{colour}"/>' for x, y in places)
    return f'<polyline points="{drawn}" fill="none" stroke="{colour}"/>{dots}'
