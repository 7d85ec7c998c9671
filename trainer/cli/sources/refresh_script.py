"""Read, hash and check a retrain's refresh script at the desk, without running it; check that a set can be
fetched.
"""

from __future__ import annotations

import ast
import hashlib
import re
import sys
from contextlib import suppress
from io import BytesIO
from pathlib import Path

import trainer
from trainer.aws.objects import Objects
from trainer.base.errors import UsageError
from trainer.base.own_file import as_usage_error, read_file
from trainer.data.table import FETCH
from trainer.job.job import Job
from trainer.launch.inputs import RAW

LOCK = "node/prepare.lock"
_MODULES = {  # of distributions whose module has another name
    "attrs": "attr",
    "beautifulsoup4": "bs4",
    "peewee": "playhouse",
    "protobuf": "google",
    "python-dateutil": "dateutil",
}


def with_refresh_script(job: Job) -> tuple[Job, dict[str, bytes]]:
    """Read and check the job's refresh script, if it has one. Return the job that names it by hash, and its
    content for the bundle.

    Raises UsageError for anything but a small Python file, and for an import that a prepare run lacks.
    """
    if job.data.refresh in ("", FETCH):
        return job, {}
    content = read_file(job.data.refresh)
    name = Path(job.data.refresh).name
    with as_usage_error(f"{name} can't be compiled"):
        tree = ast.parse(content, name)
        compile(content, name, "exec", dont_inherit=True)
    _refuse_imports(tree, name)
    sha256 = hashlib.sha256(content).hexdigest()
    return job.with_data(refresh=f"{sha256}.py"), {sha256: content}


def refuse_unfetched(objects: Objects, data_set: str) -> None:
    """Raise UsageError if a set's smallest parquet file does not say from which source its bars are."""
    import pyarrow as pa  # late: it is slow to load
    import pyarrow.parquet as pq

    from trainer.data.read.fetch_record import FETCHED_KEY

    listed = [item for item in objects.list(prefix=f"{RAW}{data_set}/") if item.key.endswith(".parquet")]
    stored = objects.get(key=min(listed, key=lambda item: item.size).key) if listed else None
    metadata = None
    if stored is not None:
        with suppress(pa.ArrowException, OSError):
            metadata = pq.read_metadata(BytesIO(stored.body)).metadata
    if FETCHED_KEY in (metadata or {}):
        return
    why = f"no file of data set {data_set} says from which source its bars are"
    do = f"Fetch its first files with mayfly data fetch, then: mayfly data push PATH --set {data_set}."
    raise UsageError("data.refresh = fetch has nothing to go on from", why=why, do=do)


def _refuse_imports(tree: ast.Module, name: str) -> None:
    """Raise UsageError for a module that the script imports at the top and that the lock of prepare runs
    lacks.
    """
    wanted = {alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names}
    wanted |= {
        "a module beside it" if node.level else str(node.module)
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
    }
    there = {*sys.stdlib_module_names, *locked_modules()}
    for module in sorted(one.partition(".")[0] for one in wanted):
        if module not in there:
            why = (
                f"a prepare run has the standard library and what trainer/{LOCK} names, such as ccxt,"
                " requests and pandas"
            )
            raise UsageError(
                f"{name} imports {module}", why=why, do="Remove the import; only this one file is sent."
            )


def locked_modules() -> set[str]:
    """Return the top-level modules of a prepare run's packages."""
    lock = (Path(next(iter(trainer.__path__))) / LOCK).read_text(encoding="utf-8")
    names = re.findall(r"^([a-z0-9._-]+)==", lock, re.MULTILINE)
    return {name.replace("-", "_") for name in names} | {_MODULES[name] for name in names if name in _MODULES}
