"""`mayfly models export MODEL`: write a model as ONNX, or its card as markdown, for use elsewhere."""

from __future__ import annotations

import argparse
from pathlib import Path

from trainer.base.arguments import refuse_replacing
from trainer.base.errors import UsageError
from trainer.base.files import whole_file
from trainer.cli.output import say, say_json, warn
from trainer.cli.verbs.predict import PredictionRequest, model_files

ONNX, MARKDOWN = ".onnx", ".md"


def run(arguments: argparse.Namespace) -> int:
    """Write NAME.onnx, or with --card NAME.md, into the current folder or to --out; print its path."""
    where = {name: getattr(arguments, name) for name in ("rehearse", "stack", "local")}
    request = PredictionRequest(
        models=[arguments.model],
        data="",
        run="",
        symbols=(),
        last=None,
        model_file=arguments.model_file,
        **where,
    )
    with model_files(request) as (paths, _):
        if len(paths) > 1:
            raise UsageError(f"{arguments.model} holds {len(paths)} models", do="Name one of them.")
        (path,) = paths
        suffix = MARKDOWN if arguments.card else ONNX
        out = Path(arguments.out or f"{path.stem}{suffix}")
        if out.is_dir():
            out = out / f"{path.stem}{suffix}"
        refuse_replacing("--out", out, [path, *map(Path, arguments.model_file)])
        told = _write_card(path, out) if arguments.card else _write_onnx(arguments, path, out)
    if arguments.json:
        say_json({"path": str(out), **told})
    else:
        say(str(out))
    return 0


def _write_card(path: Path, out: Path) -> dict[str, object]:
    from trainer.store.card import read_card  # late, like all that reads models
    from trainer.store.model_card import markdown_of

    text = markdown_of(read_card(path))
    with whole_file(out) as partial:
        partial.write_text(text, encoding="utf-8")
    return {}


def _write_onnx(arguments: argparse.Namespace, path: Path, out: Path) -> dict[str, object]:
    from trainer.train.predict.loaded import load  # late: torch takes a second to load
    from trainer.train.predict.onnx_file import write_onnx

    model = load(path, own_files=[Path(file) for file in arguments.model_file])
    parity = write_onnx(model, out)
    if not arguments.json:
        for name, words in model.told.items():
            warn(f"{name} {words}")
        warn(f"{parity.share:.0e} of the largest output from torch's, on {parity.inputs} seeded inputs")
    return {"inputs": list(model.input_names), "difference": parity.share, "compared": parity.inputs}
