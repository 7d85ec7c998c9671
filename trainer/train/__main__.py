"""Train every model of a job on this machine's devices, without any cloud.

    python -m trainer.train --data DIR --symbols BTC-USD,ETH-USD --timeframe 1m --epochs 5 --out DIR at a desk
    python -m trainer.train --job JOB.json --data DIR --out DIR --events DIR --workers 4 on a node

Owns the arguments, the exit code and what is printed. Exit: 0 all models done; 100 some failed (and any
error, with --events); 2 bad input at the desk; 130 on SIGTERM, SIGHUP or Ctrl-C, with every worker gone and
finished models kept. Exit 130, too, after a notice that this machine is taken away (`notice`), with a last
checkpoint of each model; the event `ended` comes before it and names them.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import signal
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from trainer.bars.document import LARGEST_BYTES, DataPlan, read_plan
from trainer.base.arguments import Parser, check_folder
from trainer.base.environment import set_variables
from trainer.base.errors import Stopped, TrainerError, UsageError, problem_of
from trainer.base.extras import missing_library
from trainer.base.files import held_alone, read_plain, whole_file
from trainer.base.process_state import write_stacks_at_abort
from trainer.base.signs import tell_signs
from trainer.base.text import printable
from trainer.data.read.paths import check_path
from trainer.job.job import Job, refuse_script
from trainer.job.pieces import takes_all_devices
from trainer.job.reading import MOST_JOB_BYTES, load_job, parse_job
from trainer.models import DEFAULT, MODELS
from trainer.targets import TARGETS

if TYPE_CHECKING:
    from trainer.train.observing.events import EventLog, Story

MOST_WORKERS = 1_024
FLAGS = {  # of the job, with their keys
    "symbols": "data.symbols",
    "timeframe": "data.timeframe",
    "model": "model.name",
    "target": "target.name",
    "epochs": "train.epochs",
    "gpu_profile": "machine.gpu_profile",
}


def parser(prog: str = "python -m trainer.train") -> Parser:
    """Return the command's arguments."""
    parse = Parser(prog=prog, description="Train every model of a job on this machine.")
    parse.add_argument("--job", type=Path, help="job file, TOML or JSON; other flags override it")
    parse.add_argument(
        "--data", type=Path, required=True, help="folder or file of candles: parquet, CSV, Arrow"
    )
    parse.add_argument("--out", type=Path, required=True, help="folder for the models")
    parse.add_argument("--symbols", help="comma-separated (default: all)")
    parse.add_argument("--timeframe", help="such as 1m; needed only if the data has several")
    own = "or your own, FILE.py:CLASS"
    parse.add_argument(
        "--model", metavar="NAME", help=f"model: {', '.join(MODELS)}, {own} (default: {DEFAULT})"
    )
    parse.add_argument(
        "--target", metavar="NAME", help=f"target: {', '.join(TARGETS)}, {own} (default: by model)"
    )
    parse.add_argument("--epochs", type=int, help="maximum passes over the training windows")
    parse.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="settings",
        help="any other key of the job",
    )
    parse.add_argument(
        "--plan", type=Path, help="plan.json of this job's data (default: plan the candles here)"
    )
    parse.add_argument(
        "--machine", type=Path, help="JSON of this machine's expected hardware, written by the agent"
    )
    parse.add_argument("--finished", type=Path, help="JSON list of pieces that are over: left out")
    parse.add_argument(
        "--cluster", type=Path, help="JSON of the machines that share the queue, written by the agent"
    )
    parse.add_argument(
        "--carried", type=Path, help="JSON of what was fetched of other machines' models, by the agent"
    )
    parse.add_argument(
        "--arriving", type=Path, help="JSON of the candle files that are not there yet, written by the agent"
    )
    parse.add_argument("--checkpoints", type=Path, help="folder for checkpoints (default: in --out)")
    parse.add_argument("--events", type=Path, help="folder for events.jsonl, for programs")
    parse.add_argument("--workers", type=int, help="processes (default: one per GPU or core)")
    parse.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    parse.add_argument(
        "--gpu-profile", metavar="NAME", help="see `mayfly profiles` (default: that of the GPU found)"
    )
    return parse


def main(
    arguments: list[str] | None = None,
    *,
    prog: str = "python -m trainer.train",
    story: Callable[[TextIO], Story] | None = None,
) -> int:
    """Run the command; return its exit code. `mayfly train` runs it, too, with its own `prog` and `story`."""
    log, events = None, None
    try:
        options = parser(prog).parse_args(arguments)
        for number in _stops():
            signal.signal(number, _stop)
        # torch and the data packages load here, after the arguments are known to be right and signals are
        # caught.
        from trainer.train.observing.events import EventLog, Story

        shown = (story or Story)(sys.stderr)
        events = options.events
        log = EventLog(events, shown)
        tell_signs(log.emit)
        write_stacks_at_abort()
        try:
            with ExitStack() as ends:
                models, code = _train(options, log, ends)
        finally:
            tell_signs(None)
            with suppress(OSError):  # what can't be shown ends no training
                shown.finish()
        shown.print_models(models)
        return code
    except Stopped as stop:
        _say(str(stop))
        return stop.exit_code
    except (TrainerError, ModuleNotFoundError, OSError, MemoryError) as raised:
        error = missing_library(raised) if isinstance(raised, ModuleNotFoundError) else problem_of(raised)
        if error is None:
            raise
        return _failed(error, log, events)


def _say(line: str) -> None:
    with suppress(OSError):  # as above
        print(printable(line), file=sys.stderr)


def _failed(error: TrainerError, log: EventLog | None, events: Path | None) -> int:
    """Print the error that ends a training, and emit it where events are kept; return the exit code."""
    _say(f"error: {error}")
    if log is None or events is None:
        return error.exit_code
    log.emit({"event": "error", **error.as_dict(), "code": 100})
    return 100


def _train(options: argparse.Namespace, log: EventLog, ends: ExitStack) -> tuple[list[dict[str, str]], int]:
    """Train the job; return piece, file and sha256 of each model, and the exit code."""
    job = _job(options)
    set_variables(job.machine.variables)  # before torch reads them, and for every process that is started
    check_folder(options.out)
    if options.workers is not None and not 1 <= options.workers <= MOST_WORKERS:
        raise UsageError(f"--workers is {options.workers}", do=f"Give 1 to {MOST_WORKERS:,}.")
    check_path(str(options.data))
    import torch

    from trainer.base.cluster import read_cluster
    from trainer.base.environment import notice_file, ray_token_file
    from trainer.cluster.studies import StudyPieces, bounds_of, check_bounds
    from trainer.cluster.waiting import SharedPieces
    from trainer.machines.host_memory import host_gib
    from trainer.train.inputs.encoder import check_inputs, pinned
    from trainer.train.inputs.source import open_data, plan_and_open
    from trainer.train.inputs.survey import ends_observed, read_finished, survey
    from trainer.train.machine_file import read_machine
    from trainer.train.observing.meter import Repeats, meter_for
    from trainer.train.observing.observe import Observed
    from trainer.train.observing.results import TrainingResults
    from trainer.train.own.check import checked, copied
    from trainer.train.packs.strategy import places_of
    from trainer.train.piece import check_given
    from trainer.train.precision import matmul_dtype, precision_of
    from trainer.train.ranks.meeting import Meeting, token_of
    from trainer.train.ranks.supervisor import RankSupervisor, check_ranks
    from trainer.train.tuning.chosen import Chosen, Site, choose_settings
    from trainer.train.workers.assignment import WorkerSettings
    from trainer.train.workers.carried import Carried
    from trainer.train.workers.devices import choose_device, default_workers
    from trainer.train.workers.processes import worker_context
    from trainer.train.workers.supervisor import Supervisor

    job, machine = pinned(checked(job)), read_machine(options.machine)
    check_bounds(job.search, usd_per_hour=machine.usd_per_hour)
    kind, choice = choose_device(job, options.device)
    dtype = matmul_dtype(job, torch.device(kind))  # refused, if this device lacks it, before anything starts
    devices = options.workers or default_workers(kind)
    cluster = read_cluster(options.cluster) if options.cluster else None
    machines = len(cluster.addresses) if cluster else 1
    ranks = devices * machines
    together = ranks > 1 and takes_all_devices(job)
    shared = None
    if options.cluster is not None and not takes_all_devices(job):
        from trainer.cluster.shared_queue import SharedQueue

        shared = ends.enter_context(SharedQueue(options.cluster))  # gets ready while the data is read
    if not together:
        worker_context(kind)  # starts to load torch for the workers while the data is read
    ends.enter_context(held_alone(options.out))
    scratch = options.out / ".candles"  # arrays of bars, on the disk of the models
    shutil.rmtree(scratch, ignore_errors=True)  # what a killed training left there
    scratch.mkdir(parents=True)
    ends.callback(shutil.rmtree, scratch, ignore_errors=True)
    if options.plan is None:
        data = plan_and_open(job, options.data, scratch=scratch)
    else:
        coming: dict[str, Any] = {"arriving": options.arriving, "together": together}
        data = open_data(job, options.data, scratch=scratch, plan=_plan(options.plan), **coming)
    job = data.plan.decided(job)  # its features may depend on it
    check_inputs(job)
    with whole_file(options.out / "plan.json") as partial:
        partial.write_bytes(data.plan.to_bytes())
    surveyed = survey(job, data.plan)
    given = read_finished(options.finished, surveyed.pieces, job.search)
    tried = ends_observed(surveyed.pieces, job, data, options.out / "observed" / "models")
    tried |= {name: end for name, end in given.items() if end is not None}
    models_made = {name for name, end in given.items() if end is None}
    finished = frozenset(given) | tried.keys()
    finished |= {piece.name for piece in surveyed.pieces if piece.study in models_made}  # with their trials
    if together:
        check_ranks(surveyed.pieces, job, ranks=ranks)
    num_workers = devices if together else min(devices, len(surveyed.pieces))
    sharing = math.ceil(num_workers / default_workers(kind)) if kind == "cuda" else 1
    data = data.with_room(folder=scratch, host_gib=host_gib(), workers=num_workers)
    surveyed.data["notes"] = [*surveyed.data.get("notes", ()), *data.notes(surveyed.pieces, job)]
    job = copied(job, options.out / "own_files")
    earlier = {path.name for path in options.out.glob("*.safetensors")}
    observed = Observed(options.out / "observed")
    rated = ranks if together else 1 / sharing  # devices whose rate one progress event has
    meter = meter_for(job, choice.profile, dtype, machine, devices=rated, clock=time.monotonic)
    results, repeats = TrainingResults(job.name, machine), Repeats()

    def emit(event: dict[str, Any]) -> None:
        event = repeats.read(meter.read(event))
        log.emit(event)
        results(event)
        with suppress(OSError):  # a full disk costs these files, not the training
            observed(event)

    site = Site(kind=kind, profile=choice, workers=num_workers, workers_per_gpu=sharing, together=together)
    checkpoints = options.checkpoints or options.out / "checkpoints"
    if options.checkpoints is None:
        ends.callback(_remove_if_empty, checkpoints)
    is_left = len(finished) < len(surveyed.pieces)
    chosen = Chosen(job=job, choice={})
    if is_left:
        chosen = choose_settings(job, site=site, surveyed=surveyed, checkpoints=checkpoints, emit=emit)
    job, choice_of_card = chosen.job, chosen.choice | ({"ranks": ranks} if together else {})
    if is_left and machine.instance_type:  # its folder began empty: what is there was given to this attempt
        known = [piece for piece in surveyed.pieces if piece.values or not piece.study]
        to_train = [piece for piece in known if piece.name not in finished]
        check_given(to_train, job, data, folder=checkpoints, precision=precision_of(job, torch.device(kind)))
    models = [piece.description for piece in surveyed.pieces]
    profile = {"name": choice.profile.name, "why": choice.why}
    started = {"models": models, "workers": num_workers, "device": kind, "gpu_profile": profile}
    started["finished"] = [piece.title for piece in surveyed.pieces if piece.name in finished]
    emit({"event": "started", **started, "choice": chosen.choice, "data": surveyed.data})
    files = {"out": options.out, "checkpoints": checkpoints, "notice": notice_file()}
    files["machine_file"] = options.machine
    settings = WorkerSettings(job=job, data=data, **files, machine=machine, choice=choice_of_card)
    supervisor: Supervisor | RankSupervisor
    pieces = studies = None
    if shared is not None:
        most = num_workers * (1 if job.search.over else places_of(settings.job, kind))
        carried = Carried(options.carried, emit, search=job.search)
        pieces = SharedPieces(shared, emit, carried, most_carried=most)
    if job.search.over:
        usd = machine.usd_per_hour and machines * machine.usd_per_hour
        is_open = bounds_of(job.search, seconds=lambda: meter.seconds, usd_per_hour=usd)
        studies = StudyPieces(job, emit, known=tried, is_open=is_open, shared=pieces)
    if together:
        meeting = None
        if cluster is not None:
            meeting = ends.enter_context(Meeting(cluster, token=token_of(ray_token_file())))
        supervisor = RankSupervisor(
            kind=kind,
            ranks=num_workers,
            settings=settings,
            emit=emit,
            sharded=chosen.sharded,
            meeting=meeting,
        )
    else:
        queue = studies or pieces
        supervisor = Supervisor(kind=kind, num_workers=num_workers, settings=settings, emit=emit, queue=queue)
    with ExitStack() as running:
        if kind == "cuda" and is_left:
            from trainer.train.observing.gpu_watch import GpuWatch

            running.enter_context(GpuWatch(emit))
        running.enter_context(supervisor)
        outcome = supervisor.run(surveyed.pieces, finished=models_made)
    counts: dict[str, Any] = {
        "done": len(outcome.done),
        "failed": len(outcome.failed),
        "retries": outcome.retries,
    }
    there = [done for done in outcome.done.values() if done["file"] in earlier]
    kept = sorted(done["piece"] for done in there if done.get("kept"))
    replaced = sorted(done["piece"] for done in there if not done.get("kept"))
    with suppress(OSError):  # as above
        results.write(options.out, usd=meter.usd)
    over = finished.union(*outcome.over.values(), outcome.elsewhere, studies.unbegun if studies else ())
    left = [piece.title for piece in surveyed.pieces if piece.name not in over]
    if outcome.elsewhere:
        counts["elsewhere"] = [piece.title for piece in surveyed.pieces if piece.name in outcome.elsewhere]
    ended = {**counts, "kept": kept, "replaced": replaced, "stopped": left, "out": str(options.out)}
    emit({"event": "ended", **ended})
    if left:
        what = f"training stopped: this machine is taken away, with {len(left)} of {len(models)} models to go"
        raise Stopped(what, do="Finished models and checkpoints are kept.")
    made = [
        {"piece": done["piece"], "file": str(options.out / done["file"]), "sha256": done["sha256"]}
        for done in outcome.done.values()
    ]
    return made, 100 if outcome.failed else 0


def _plan(path: Path) -> DataPlan:
    try:
        return read_plan(read_plain(path, most_bytes=LARGEST_BYTES))
    except OSError as error:
        raise UsageError(
            f"cannot read plan {path}", why=str(error.strerror), do="Leave --plan out."
        ) from error


def _job(options: argparse.Namespace) -> Job:
    file = {}
    if options.job is not None:
        file = _json_job(options.job) if options.job.suffix == ".json" else load_job(options.job)
    flags = {key: value for name, key in FLAGS.items() if (value := getattr(options, name)) is not None}
    job = parse_job(file, flags, options.settings)
    refuse_script(job, "train")
    return job


def _json_job(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(read_plain(path, most_bytes=MOST_JOB_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        why = str(getattr(error, "strerror", error))
        raise UsageError(f"cannot read job {path}", why=why, do="Give the JSON of a job.") from error
    if not isinstance(values, dict):
        raise UsageError(f"job {path} is not an object", do="Give the JSON of a job.")
    return values


def _remove_if_empty(folder: Path) -> None:
    with suppress(OSError):  # not there, or models have checkpoints
        folder.rmdir()


def _stops() -> list[signal.Signals]:
    """Return the signals that stop a training; a closed terminal's (SIGHUP) unless nohup has it ignored."""
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [signal.SIGTERM, signal.SIGINT, *([] if ignored else [signal.SIGHUP])]


def _stop(number: int, _frame: object) -> None:
    """Turn the first signal into an exception, so that the supervisor's `with` ends the workers; ignore later
    ones.
    """
    for later in _stops():
        signal.signal(later, signal.SIG_IGN)
    raise Stopped(f"training stopped by {signal.Signals(number).name}", do="Finished models are kept.")


if __name__ == "__main__":
    sys.exit(main())
