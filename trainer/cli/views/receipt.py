"""The receipt as text: outcome, time by phase, dollars, machines and the proof of their end, models."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from trainer.base.instants import from_iso
from trainer.cli.output import bars_are, counted, duration, money
from trainer.cli.views.models import judged_table, legend
from trainer.cli.views.table import BAD, GOOD, STRONG, Blocks, Cell, FittedTable, Inline, lines, styled
from trainer.cli.views.trading import TradedTable
from trainer.cli.views.trials import is_search, trials_view
from trainer.runs.boot import STEPS
from trainer.runs.deadline import CAUSES
from trainer.runs.receipt import is_whole, ranked, winner
from trainer.store.listing import expiry
from trainer.targets.marks import in_order

MARKS = {"done": ("✓", GOOD), "stopped": ("■", "yellow")}  # of states; any other is a failure
FAILED_MARK = ("✗", BAD)
MOST_SHOWN_FILES, MOST_SHOWN_VALUES, MOST_LAST_LINES = 40, 60, 3  # --json has all
MOST_SHOWN_NOTES = 5  # on values that are done
ADDED = {None: "", True: "added", False: "checked"}  # what a refresh did with a file
MOST_SHOWN_MODELS = 30
MOST_SHOWN_NODES = 16  # above, those that were done are only counted


def receipt_view(
    receipt: dict[str, Any], experiment_days: int, *, checkpoint_days: int = 0
) -> RenderableType:
    """Return a receipt as labelled blocks. The days are those that the stack keeps what a run stored (0: for
    ever), and its newest checkpoints after the run (0: not known).
    """
    return lines("", Blocks(_entries(receipt, experiment_days, checkpoint_days)))


def set_by(item: dict[str, Any]) -> str:
    """Return the source of the deadline of a receipt or status document, as text."""
    return f"set by {CAUSES.get(item['deadline_cause'], item['deadline_cause'])}"


def _entries(
    receipt: dict[str, Any], days: int, checkpoint_days: int
) -> Iterator[tuple[str, RenderableType]]:
    made = _WORK.get(receipt["work"], _outputs)
    kept = partial(_kept, days=days, checkpoint_days=checkpoint_days)
    for part in (_outcome, _time, _dollars, _attempts, _machines, _nodes, made, kept, _ends):
        if blocks := list(part(receipt)):
            yield from (blocks if part is _outcome else [("", ""), *blocks])


def _kept(
    receipt: dict[str, Any], *, days: int, checkpoint_days: int
) -> Iterator[tuple[str, RenderableType]]:
    """Yield the date after which S3 deletes the models or files of a run, if there is one, and that until
    which its checkpoints stay.
    """
    if receipt["checkpoints"] and checkpoint_days and receipt["closed_at"]:
        until = expiry(from_iso(receipt["closed_at"]), checkpoint_days)
        yield "kept", f"the newest checkpoints until {until} (retention.checkpoint_days = {checkpoint_days})"
    stored = "models" if receipt["work"] == "train" else "files"
    after = expiry(from_iso(receipt["created_at"]), days)
    if after and receipt[stored] and receipt["work"] != "prepare":
        pull = f"mayfly pull {receipt['run_id']} keeps a copy"
        yield "kept", f"{stored} are deleted after {after} (retention.experiment_days = {days}); {pull}"


def _outcome(receipt: dict[str, Any]) -> Iterator[tuple[str, RenderableType]]:
    mark, style = MARKS.get(receipt["state"], FAILED_MARK)
    outcome = styled(f"{mark} {receipt['state']}", f"{STRONG} {style}")
    yield "outcome", Inline([outcome, *_made(receipt), f"exit code {receipt['exit_code']}"])
    if error := receipt["error"]:
        why = f" ({error['why']})" if error["why"] else ""
        yield "because", f"{error['what']}{why}."
        if error["do"]:
            yield "", error["do"]
    yield "run", receipt["run_id"]
    if receipt["parent"]:
        yield "continues", receipt["parent"]
    if (data := receipt["data"]) and receipt["work"] in ("train", "prepare"):
        read = [f"{data['bars']:,} bars ({bars_are(data['synthetic'])})", counted(data["holes"], "hole")]
        yield "data", Inline(read if data["bars"] else ["none read"])
    if inputs := receipt["inputs"]:
        yield from _cache(inputs)


def _made(receipt: dict[str, Any]) -> list[str]:
    """Return how much was made, as text."""
    made, failed, scripts = len(receipt["models"]), len(receipt["failed"]), receipt["scripts"]
    if receipt["work"] == "train":
        return [f"{made} of {counted(made + failed, 'model')}" if failed else counted(made, "model")]
    if receipt["work"] == "score":
        return ["scores of a gate"]
    done, noun = sum(map(is_whole, scripts)), "trial" if is_search(scripts) else "value"
    values = [f"{done} of {counted(len(scripts), noun)}"] if len(scripts) > 1 else []
    return [*values, counted(len(receipt["files"]), "file")]


def _cache(inputs: Mapping[str, Any]) -> Iterator[tuple[str, RenderableType]]:
    """Yield the use of the shared cache, if the stack has one."""
    if inputs["cache_failed"]:
        yield "cache", f"not used, inputs came from S3: {inputs['cache_failed']}"
    elif inputs["cache_files"] or inputs["cache_added"] or inputs["cache_refused"]:
        refused = f"{inputs['cache_refused']} refused and fetched from S3" if inputs["cache_refused"] else ""
        given = f"{inputs['cache_files']} of {counted(inputs['cache_files'] + inputs['s3_files'], 'file')}"
        yield "cache", Inline([f"{given} ({inputs['cache_bytes'] / 1e6:.1f} MB), the rest from S3", refused])


def _time(receipt: dict[str, Any]) -> Iterator[tuple[str, RenderableType]]:
    seconds = receipt["seconds"]
    yield "time", f"{duration(seconds['total'])} in all"
    shown = {
        phase: value for phase, value in seconds.items() if phase != "total" and (value or phase != "lost")
    }
    yield "", Inline(f"{phase} {duration(value)}" for phase, value in shown.items())
    if boot := receipt["boot"]:
        image = "a baked image" if boot["baked"] else "AWS's image, not baked"
        yield "boot", Inline([image, *(f"{step} {duration(boot[step])}" for step in STEPS)])
    yield "deadline", f"{receipt['deadline']}, {set_by(receipt)}"


def _dollars(receipt: dict[str, Any]) -> Iterator[tuple[str, RenderableType]]:
    dollars = receipt["dollars"]
    if receipt["host"]:
        yield "dollars", "none by Mayfly"
        return
    estimated = f"estimated {money(dollars['estimated'])}" if dollars["estimated"] else "not estimated"
    yield "dollars", Inline([f"spent {spent(dollars)}", estimated])
    if saved := spot_saved(dollars):
        yield "", saved
    prices = (
        f"{item['instance_type']} {item['market'].replace('_', '-')}: "
        f"{money(item['price_usd_per_hour'])} an hour{' each' if receipt.get('nodes') else ''} with its disk"
        for item in receipt["instances"]
    )
    for price in dict.fromkeys(prices):
        yield "", price
    if sent := receipt["checkpoints"]:
        size, usd, high = sent["bytes"] / 1e6, max(sent["usd"], 0.0001), dollars["spent_high"]
        share = f", {sent['usd'] / high:.2%} of that" if high else ""
        yield "", f"besides, checkpoints: {size:,.1f} MB sent to S3, {money(usd)}{share}"


def spent(dollars: dict[str, float]) -> str:
    """Return a run's cost: its low and high bound, or one number if both read the same."""
    return _between(dollars["spent_low"], dollars["spent_high"])


def spot_saved(dollars: Mapping[str, float]) -> str:
    """Return what spot saved or cost against on-demand machines; '' for a run without spot."""
    low, high = dollars.get("spot_saved_low", 0.0), dollars.get("spot_saved_high", 0.0)
    if not low and not high:
        return ""
    if high < 0:
        return f"spot cost {_between(-high, -low)} more than on demand would have"
    return f"spot saved {_between(max(low, 0.0), high)} against on demand"


def _between(low: float, high: float) -> str:
    least, most = money(low), money(high)
    return least if least == most else f"{least} to {most}"


def _machines(receipt: dict[str, Any]) -> Iterator[tuple[str, RenderableType]]:
    none = f"{receipt['host']}: yours, no instance" if receipt["host"] else "none was started"
    table = FittedTable(
        map(_machine, receipt["instances"]), leaving=("zone", "market", "type"), wraps=("proof",)
    )
    yield "machine", table if receipt["instances"] else none
    if words := _left(receipt):
        yield "left", styled(words, BAD)


def _left(receipt: dict[str, Any]) -> str:
    """Return what AWS still showed as the run was closed, and who deletes it; '' for nothing."""
    left = receipt["left"]
    if left is None:
        return "nobody could look: mayfly doctor does" if receipt["instances"] else ""
    named = ", ".join(f"{item['kind']} {item['id']} ({item['state']})" for item in left)
    asked = [item["id"] for item in left if item["kind"] == "spot request"]
    deletes = "mayfly doctor says more, --fix deletes it" if len(asked) < len(left) else ""
    cancels = f"aws ec2 cancel-spot-instance-requests --spot-instance-request-ids {' '.join(asked)}"
    return ". ".join(filter(None, (named, deletes, cancels if asked else "")))


def _attempts(receipt: dict[str, Any]) -> Iterator[tuple[str, RenderableType]]:
    """Yield the attempts of a run that lost a machine: how each ended, and what it cost."""
    if len(receipt["attempts"]) > 1:
        yield "attempts", FittedTable(map(_attempt, receipt["attempts"]), right=("spent",), wraps=("end",))
        if (twice := receipt.get("steps_twice")) is not None:
            steps = counted(twice, "step was", "steps were")
            yield "", f"{steps} computed twice, by the machines' reports"


def _attempt(attempt: dict[str, Any]) -> dict[str, Cell]:
    error = attempt["error"] or {}
    why = f" ({error['why']})" if error.get("why") else ""
    return {
        "attempt": str(attempt["number"]),
        "instance": ", ".join(attempt["instances"]) or "-",
        "time": duration(attempt["seconds_high"]),
        "spent": spent(attempt),
        "end": f"{error['what']}{why}" if error else "the run's",
    }


def _machine(instance: dict[str, Any]) -> dict[str, Cell]:
    proof = instance["proof"]
    mark, style = MARKS["done"] if proof else FAILED_MARK
    end = Text.assemble((f"{mark} ", style), styled(instance["state"], ""))
    return {
        "instance": instance["instance_id"],
        "type": instance["instance_type"],
        "market": instance["market"].replace("_", "-"),
        "zone": instance["availability_zone"],
        "end": end,
        "proof": proof or "none",
    }


def _nodes(receipt: dict[str, Any]) -> Iterator[tuple[str, RenderableType]]:
    """Yield what became of each of several nodes; of many of those that were not done."""
    nodes = receipt.get("nodes") or []
    shown = nodes if len(nodes) <= MOST_SHOWN_NODES else [one for one in nodes if one["state"] != "done"]
    if nodes:
        yield "nodes", FittedTable(map(_node, shown), right=("node", "made"), wraps=("end",))
    if len(shown) < len(nodes):
        yield "", f"and {len(nodes) - len(shown)} that were done"


def _node(node: dict[str, Any]) -> dict[str, Cell]:
    error = node["error"] or {}
    why = f" ({error['why']})" if error.get("why") else ""
    bad = node["state"] in ("lost", "failed")
    what = f": {error['what']}{why}" if bad and error else ""
    return {
        "node": str(node["node"]),
        "instance": node["instance_id"],
        "made": str(node["models"]),
        "end": styled(f"{node['state'] or 'at work'}{what}", BAD if bad else ""),
    }


def _models(receipt: dict[str, Any]) -> Iterator[tuple[str, RenderableType]]:
    models = in_order(receipt["models"])
    if told := receipt["verdict"]:
        yield "verdict", styled(told, STRONG)
    yield "models", judged_table(models[:MOST_SHOWN_MODELS]) if models else "none"
    if len(models) > MOST_SHOWN_MODELS:
        yield "", f"and {counted(len(models) - MOST_SHOWN_MODELS, 'more model')}, --json has all"
    yield from (("", styled(line, "dim")) for line in legend(models))
    yield from _traded(models)
    yield from trials_view(receipt.get("trials", ()))
    yield from _failures(receipt)
    if receipt["retries"]:
        yield "", f"{counted(receipt['retries'], 'model was', 'models were')} retried"


def _traded(models: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, RenderableType]]:
    """Yield what a plain rule made on the forecasts of models that a person would trade on."""
    traded = TradedTable([({"piece": str(model["piece"])}, model.get("metrics") or {}) for model in models])
    if traded:
        yield "if traded", traded.table(MOST_SHOWN_MODELS)
        yield from (("", styled(line, "dim")) for line in traded.legend())


def _failures(receipt: dict[str, Any]) -> Iterator[tuple[str, RenderableType]]:
    mark, style = FAILED_MARK
    for failure in sorted(receipt["failed"], key=_piece):
        reason = styled(f"{failure['piece']}: {failure['reason']}", "")
        yield "", Text.assemble((f"{mark} ", style), reason)
    for reason in receipt["left_out"]:
        yield "", Text.assemble((f"{mark} ", style), styled(f"left out: {reason}", ""))
    broken = receipt.get("devices", {}).get("out_of_service", ())
    yield from (("", styled(f"out of service: {line}", BAD)) for line in broken)


def _files(receipt: dict[str, Any]) -> Iterator[tuple[str, RenderableType]]:
    """Yield the output files, or those that a refresh added or checked."""
    shown = [
        Inline([file["file"], ADDED[file.get("added")], counted(file["bytes"], "byte"), file["sha256"][:12]])
        for file in receipt["files"][:MOST_SHOWN_FILES]
    ]
    more = len(receipt["files"]) - len(shown)
    yield "files", lines(*shown, *([f"and {more:,} more"] if more else [])) if shown else "none"


def _outputs(receipt: dict[str, Any]) -> Iterator[tuple[str, RenderableType]]:
    """Yield a script's exit, its last lines, and its output files."""
    scripts = receipt["scripts"]
    if is_search(scripts):
        yield from trials_view(ranked(scripts))
        yield from _last_lines([one for one in scripts if one.get("end") == "failed"])
        scripts = []
    elif len(scripts) > 1:
        yield from _values(scripts)
        scripts = []
    for script in scripts:
        starts = f"started {script['starts']} times" if script["starts"] > 1 else ""
        took = duration(script["seconds"])
        yield "script", Inline([script["piece"], _ended(script), took, starts, _best(script)])
        yield from (("", styled(note, "")) for note in script["notes"])
        yield "", ""
        yield "last lines", lines(*script["last_lines"]) if script["last_lines"] else "it printed nothing"
    yield from _failures(receipt)
    yield "", ""
    yield from _files(receipt)


def _best(script: Mapping[str, Any]) -> str:
    """Return the best value of a script's metric, as text."""
    best = script["best"]
    return f"best {best['metric']} {best['value']:.4g}" if best else ""


def _values(scripts: list[dict[str, Any]]) -> Iterator[tuple[str, RenderableType]]:
    """Yield the winner, how a script ended for each of its values, notes on those that are done, and the last
    lines of those not done.
    """
    if best := winner(scripts):
        yield "winner", Inline([best["piece"], _best(best).removeprefix("best ")])
    shown = ranked(scripts)[:MOST_SHOWN_VALUES]
    yield "values", FittedTable(map(_value, shown), right=("time", "starts"), leaving=("starts",))
    if len(scripts) > len(shown):
        yield "", f"and {len(scripts) - len(shown):,} more"
    notes = Counter(note for script in scripts if script["done"] for note in script["notes"])
    for note, number in notes.most_common(MOST_SHOWN_NOTES):
        yield "", f"{counted(number, 'value')}: {note}"
    yield from _last_lines([script for script in scripts if not script["done"]])


def _last_lines(failed: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, RenderableType]]:
    """Yield the notes and last lines of the first of a script's values that failed."""
    for script in failed[:MOST_LAST_LINES]:
        told = [*script["notes"], *script["last_lines"]]
        yield "", ""
        yield "last lines", lines(f"of {script['piece']}:", *(told or ["it printed nothing"]))


def _value(script: dict[str, Any]) -> dict[str, Cell]:
    mark, style = MARKS["done"] if script["done"] else FAILED_MARK
    return {
        "": styled(mark, style),
        "value": script["piece"],
        "end": _ended(script),
        "best": _best(script).removeprefix("best "),
        "time": duration(script["seconds"]),
        "starts": str(script["starts"]),
    }


def _ended(script: Mapping[str, Any]) -> str:
    code = script["exit_code"]
    return f"exit code {code}" if code >= 0 else f"signal {-code}"


def _piece(entry: dict[str, Any]) -> str:
    return str(entry["piece"])


def _ends(receipt: dict[str, Any]) -> Iterator[tuple[str, RenderableType]]:
    """Yield the log of a boot that failed, and the note of the place."""
    if log := receipt["log_tail"]:
        yield "its log", lines(*log.splitlines())
    if log and receipt["note"]:
        yield "", ""
    if receipt["note"]:
        yield "note", styled(receipt["note"], "dim")


_WORK = {"train": _models, "prepare": _files}  # any other command's is its outputs
