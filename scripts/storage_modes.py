"""A rehearsed run with each storage option and real training: `python -m scripts.storage_modes`. No account,
no GPU, a minute.

S3 once. A cache three times: the first run fills the cache from S3, the second reads only the cache, and
before the third a cached file is poisoned, which must be noticed and fetched again; the third's models score
as the second's. A local folder, on the stack with the cache: a run from the folder, whose models are pulled
there; the folder is backed up, deleted, restored, and trained from again.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from scripts.weekly import desk_variables
from trainer.aws import access as sessions
from trainer.aws.access import Access
from trainer.cli.main import main as mayfly
from trainer.data.read.writing import write_candles
from trainer.data.synthetic import synthetic_candles
from trainer.rehearsal.server import EmbeddedAws
from trainer.runs.receipt import Receipt

SYMBOLS = ("AAA", "BBB")
QUICK = ("--set", "model.hidden=8", "--set", "model.lookback=20", "--set", "train.batch=128", "--epochs", "1")


@contextmanager
def desk(aws: EmbeddedAws, storage: str, folder: Path) -> Iterator[Access]:
    """Give the desk a stack with this storage, as AWS's own variables name it, and a local folder."""
    account = aws.account()
    aws.apply_program(account, {"storage": storage})
    before = dict(os.environ)
    os.environ.update(desk_variables(account), MAYFLY_LOCAL=str(folder / "mine"))
    sessions._client.cache_clear()
    sessions._session.cache_clear()
    try:
        yield account
    finally:
        os.environ.clear()
        os.environ.update(before)


def call(*words: str) -> Any:
    """Run a command and return its JSON. Raises RuntimeError if it fails."""
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        code = mayfly([*words, "--json"])
    if code:
        raise RuntimeError(f"mayfly {' '.join(words)} ended with {code}: {out.getvalue()} {err.getvalue()}")
    return json.loads(out.getvalue())


def launch(*words: str) -> Receipt:
    """Run a launch to its end and return the receipt."""
    receipt: Receipt = call("launch", "-y", "--instance", "g6.xlarge", *QUICK, *words)
    return receipt


def scores(receipt: Receipt) -> dict[str, Any]:
    """Return each model's scores, to the last digit. Model files can't be compared: each contains its
    time.
    """
    return {model["piece"]: model["metrics"]["test"] for model in receipt["models"]}


def tree(folder: Path) -> dict[str, str]:
    """Return the hash of each file below a folder."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files
    }


def check(what: str, holds: bool, told: object = "") -> None:
    """Print the result of a check. Raises SystemExit if it fails."""
    print(f"{'✓' if holds else '✗'} {what}", flush=True)
    if not holds:
        raise SystemExit(f"it failed: {told}")


def primary(aws: EmbeddedAws, folder: Path) -> None:
    """S3 alone."""
    with desk(aws, "s3", folder):
        inputs = launch("--data", str(folder / "candles"))["inputs"]
        check(
            "s3: both files and the plan came from S3",
            inputs["s3_files"] == 3 and not inputs["cache_failed"],
            inputs,
        )


def cached(aws: EmbeddedAws, folder: Path) -> None:
    """S3 with a cache."""
    with desk(aws, "efs-cache", folder) as access:
        first = launch("--data", str(folder / "candles"))
        check(
            "efs-cache: the first run filled the cache from S3",
            first["inputs"]["cache_added"] == 2,
            first["inputs"],
        )
        second = launch()
        counts = second["inputs"]
        check(
            "efs-cache: the second asked S3 for no input",
            (counts["s3_files"], counts["cache_files"]) == (0, 2),
            counts,
        )
        entry = next((aws.root / "efs" / aws.cloud(access).account).glob("*/*/*"))
        right = entry.read_bytes()
        entry.write_bytes(bytes(len(right)))
        third = launch()
        counts = third["inputs"]
        check(
            "efs-cache: a poisoned file was noticed",
            (counts["cache_refused"], counts["s3_files"]) == (1, 1),
            counts,
        )
        check("efs-cache: and replaced by what S3 has", entry.read_bytes() == right)
        check("efs-cache: its models score as before, to the last digit", scores(second) == scores(third))


def at_the_desk(aws: EmbeddedAws, folder: Path) -> None:
    """The desk's folder, with S3 as its backup, whatever the stack's storage is."""
    mine = folder / "mine"
    shutil.copytree(folder / "candles", mine / "candles" / "main")
    with desk(aws, "efs-cache", folder):
        receipt = launch()
        call("pull", receipt["run_id"])
        before = tree(mine)
        check(
            "local: models were pulled into the folder",
            any(name.endswith(".safetensors") for name in before),
            before,
        )
        saved = call("backup")
        check("local: everything was backed up", len(saved["moved"]) == len(before), saved)
        check("local: a second backup uploads nothing", call("backup")["moved"] == [])
        shutil.rmtree(mine)
        restored = call("backup", "--restore")
        check("local: the deleted folder is back as it was", tree(mine) == before, restored)
        again = launch()
        check(
            "local: a run from what was restored scores the same, to the last digit",
            scores(again) == scores(receipt),
        )


def main() -> int:
    """Run with every option."""
    with tempfile.TemporaryDirectory(prefix="mayfly-storage-") as name, contextlib.chdir(name):
        folder = Path(name)
        (folder / "candles").mkdir()
        for symbol in SYMBOLS:
            write_candles(
                folder / "candles" / f"{symbol}_1m.parquet",
                [synthetic_candles(symbol, bars=2_500)],
                synthetic=True,
            )
        with EmbeddedAws(folder / "aws", fork_nodes=True, grace_seconds=60) as aws:
            for option in (primary, cached, at_the_desk):
                option(aws, folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
