"""`mayfly plan`: time and price of a job on every kind of machine, without account, stack or network.

A job with its data, or numbers alone. It is the plan of a launch (`launch.planning.plan_work`) over the
offers of the package's price lists (`launch.offline`); with --stack over those of the account. Writes
nothing.
"""

from __future__ import annotations

import argparse
import csv
import io
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from trainer.aws.access import Access, own_access
from trainer.aws.place import ACCOUNT
from trainer.base import environment
from trainer.base.errors import DataError, UsageError
from trainer.base.instants import utc_now
from trainer.cli.asked_job import asked_job
from trainer.cli.defaults import notes
from trainer.cli.output import say, say_json, say_text
from trainer.cli.terminal import show
from trainer.job.job import Job
from trainer.job.machine import MARKETS, parse_duration
from trainer.launch.bundle import BundleName
from trainer.launch.candidates import PlanCandidate
from trainer.launch.commitment_prices import account_commitments
from trainer.launch.inputs import ChosenCandles
from trainer.launch.offline import age_notes, list_offers, machines_to_weigh, no_account, priced_outside
from trainer.launch.pay import WaysToPay, ways_to_pay
from trainer.launch.plan import LaunchPlan
from trainer.launch.planning import plan_work, with_candles
from trainer.launch.preflight import Offers, query_offers
from trainer.launch.prices import disk_price
from trainer.launch.recommend import Recommendation, recommend
from trainer.launch.weighing import weigh
from trainer.launch.work import Account, ScriptWork, TrainingWork
from trainer.machines.commitments import Commitment, commitments_of
from trainer.machines.instances import TABLE_REGION, InstanceType
from trainer.machines.outside import DESK, desk_machines, outside_machines
from trainer.machines.planner import BYTES_OF_A_BAR
from trainer.runs import calibration
from trainer.runs.month import month_of_runs

NO_CODE = BundleName(sha256="", lock_sha256="")  # a plan has no use for it
MOST_BARS, MOST_SYMBOLS = 10**9, 10**6
MARKET = "machine.market"  # of a job: a plan weighs both, unless a flag names one


@dataclass(frozen=True, kw_only=True)
class Advice:
    """A plan with the machines outside AWS, the choice among its candidates, and notes."""

    work: TrainingWork | ScriptWork
    plan: LaunchPlan
    outside: tuple[PlanCandidate, ...]
    choice: Recommendation | None  # None: no time is known
    pay: WaysToPay | None  # for the recommended type
    notes: tuple[str, ...]


def run(arguments: argparse.Namespace) -> int:
    """Print the plan. Returns 0."""
    if arguments.calibration is not None:
        return _print_calibration(arguments)
    advice = advise(arguments)
    if arguments.json:
        say_json(_document(advice))
    elif arguments.csv:
        say_text(_as_csv([*advice.plan.candidates, *advice.outside], advice.pay))
    else:
        from trainer.cli.views.advice import advice_view

        show(advice_view(advice.work, advice.plan, advice.outside, advice.choice, advice.pay))
        say(*(f"note: {note}" for note in advice.notes))
    return 0


def advise(arguments: argparse.Namespace) -> Advice:
    """Plan what the user asks for. Raises a TrainerError for a job, or numbers, that no machine fits."""
    deadline = parse_duration(arguments.deadline, "--deadline") if arguments.deadline else None
    counted = _take_count(arguments)
    job = asked_job(arguments)
    desks = desk_machines(arguments.desk)
    work = _script_work(job) if job.script.command else _training_work(job, arguments.bars, counted)
    if arguments.market is None:
        markets = MARKETS if work.keeps_checkpoints else MARKETS[:1]
        work = replace(work, job=replace(work.job, machine=replace(work.job.machine, market=markets)))
    account, offers = _offered(arguments, work.job)
    plan = plan_work(work, offers, account)
    outside = () if job.script.command else _weighed_outside(work, (*outside_machines(), *desks))
    listed = [*offers.priced.machines, *(one.machine for one in outside)]
    choice = _chosen(plan, arguments.objective, deadline)
    bought, unpriced = _commitments(choice, account, plan.region)
    return Advice(
        work=work,
        plan=plan,
        outside=outside,
        choice=choice,
        pay=_ways(choice, plan, outside, bought, offers) if choice else None,
        notes=(
            *notes(arguments, unused=MARKET),
            *_month_notes(account, plan),
            *unpriced,
            *age_notes(listed, bought, today=utc_now().date(), asked=bool(account.outputs.stack)),
        ),
    )


def _month_notes(account: Account, plan: LaunchPlan) -> list[str]:
    if not account.outputs.account_budget:
        return []
    month = month_of_runs(account.objects, utc_now())
    return month.notes(
        account.outputs.account_budget, planned_usd=plan.estimated_usd, most_usd=plan.hard_stop_usd
    )


def _commitments(
    choice: Recommendation | None, account: Account, region: str
) -> tuple[tuple[Commitment, ...], tuple[str, ...]]:
    """Return the commitments for the recommended type, and notes on those that AWS did not tell: an account's
    prices are asked for; without one they are the list's, where the region is that of the list.
    """
    if choice is None:
        return (), ()
    name = choice.recommended.machine.name
    if account.outputs.stack:
        return account_commitments(account.access, name, region=region, today=utc_now().date())
    return (commitments_of(name) if region == TABLE_REGION else ()), ()


def _ways(
    choice: Recommendation,
    plan: LaunchPlan,
    outside: Sequence[PlanCandidate],
    bought: Sequence[Commitment],
    offers: Offers,
) -> WaysToPay:
    desks = [one for one in outside if one.machine.seller == DESK]
    disk = disk_price(offers.disk, region=plan.region)
    return ways_to_pay(choice.recommended, plan.candidates, desks, bought, disk_usd_per_hour=disk)


def _chosen(plan: LaunchPlan, objective: str, deadline: timedelta | None) -> Recommendation | None:
    if not any(one.is_estimated and not one.refused for one in plan.candidates):
        return None
    return recommend(plan.candidates, objective=objective, deadline=deadline)


def _take_count(arguments: argparse.Namespace) -> int:
    """Return the number that --symbols gives instead of names, 0 for none."""
    text = (arguments.symbols or "").strip()
    if not text.isdecimal():
        return 0
    arguments.symbols = None
    if len(text) > len(str(MOST_SYMBOLS)) or not 1 <= int(text) <= MOST_SYMBOLS:
        do = f"Name symbols, or how many: 1 to {MOST_SYMBOLS:,}."
        raise UsageError(f"--symbols {text[:20]} is out of bounds", do=do)
    return int(text)


def _training_work(job: Job, bars: int | None, count: int) -> TrainingWork:
    """Return the work on the job's data, or on as many symbols and bars as were named."""
    if bars is not None and not 0 < bars <= MOST_BARS:
        raise UsageError(f"--bars is {bars}", do="Name the bars of each symbol, such as --bars 3700000.")
    if bars is None and not job.data.path:
        why = "no candles were named, and without an account there are none to count"
        do = "Name them with --data PATH, or give numbers: --symbols 20 --bars 500000."
        raise UsageError("nothing to plan for", why=why, do=do)
    if bars is None:
        return _of_files(job, count)
    names = job.data.symbols or tuple(f"S{number:04d}" for number in range(1, (count or 1) + 1))
    by_symbol = dict.fromkeys(names, bars)
    candles = ChosenCandles(
        timeframe=job.data.timeframe or "1m",
        bars=by_symbol,
        synthetic=False,
        desk_bytes=BYTES_OF_A_BAR * sum(by_symbol.values()),
    )
    return TrainingWork(job=with_candles(job, candles), code=NO_CODE, candles=candles)


def _of_files(job: Job, count: int) -> TrainingWork:
    from trainer.cli.sources.counted import count_bars

    found = count_bars(job.data.path, timeframe=job.data.timeframe)
    names = [name for name in job.data.symbols or found.bars if name not in job.data.exclude]
    if not names:
        why = f"data.exclude names all that {job.data.path} has"
        raise DataError("no symbol is left to train", why=why, do="Leave one out of data.exclude.")
    if count > len(names):
        do = "Name fewer, or plan by numbers alone: --bars N."
        raise UsageError(f"--symbols {count}, but {job.data.path} has {len(names)}", do=do)
    names = names[: count or None]
    if missing := [name for name in names if name not in found.bars]:
        why = f"{job.data.path} has {', '.join(list(found.bars)[:12])}"
        do = "Name symbols that it has, or add their candles."
        raise UsageError(f"there are no bars of {', '.join(missing[:6])}", why=why, do=do)
    candles = ChosenCandles(
        timeframe=found.timeframe or "1m",
        bars={name: found.bars[name] for name in names},
        synthetic=False,
        desk_bytes=found.bytes,
    )
    return TrainingWork(job=with_candles(job, candles), code=NO_CODE, candles=candles)


def _script_work(job: Job) -> ScriptWork:
    from trainer.launch.script_files import names_checkpoints, script_files

    files = script_files(job.script)
    return ScriptWork(
        job=job,
        code=NO_CODE,
        files=dict.fromkeys(files, ""),
        sha256="",
        names=(job.name,),
        has_checkpoints=names_checkpoints(job.script, files),
    )


def _offered(arguments: argparse.Namespace, job: Job) -> tuple[Account, Offers]:
    """Return an account and what it offers: the user's with --stack, else the package's lists."""
    if arguments.stack is None:
        region = environment.aws_region()[1] or TABLE_REGION
        return no_account(job, region), list_offers(machines_to_weigh(job), region=region)
    account = _account(own_access(), arguments.stack)
    machines = machines_to_weigh(job, account.outputs.image_line)
    spot = "spot" in job.machine.market
    offers = query_offers(account.access, outputs=account.outputs, machines=machines, spot=spot)
    return account, offers


def _account(access: Access, stack: str) -> Account:
    from trainer.aws.objects import open_objects
    from trainer.aws.stack import read_stack

    outputs = read_stack(access, stack=stack)
    return Account(access=access, outputs=outputs, objects=open_objects(access, outputs.bucket))


def _print_calibration(arguments: argparse.Namespace) -> int:
    """Print predicted against actual seconds of the last runs, and the median error."""
    from trainer.cli.connect import connected

    if arguments.calibration < 1:
        raise UsageError(f"--calibration is {arguments.calibration}", do="Name how many runs, such as 10.")
    with connected(rehearse=environment.rehearses(), create=False) as access:
        stored = _account(access, arguments.stack or "dev").objects.get(key=calibration.OBJECT)
    runs = calibration.runs_from(stored.body)[-arguments.calibration :] if stored else ()
    if arguments.json:
        rows = [{**vars(run), "error": round(run.error, 4)} for run in runs]
        say_json({"phases": calibration.PHASES, "runs": rows, "median_error": _median_error(runs)})
        return 0
    from trainer.cli.views.advice import calibration_view

    show(calibration_view(runs, _median_error(runs)))
    return 0


def _median_error(runs: Sequence[calibration.TimedRun]) -> float | None:
    return round(statistics.median(run.error for run in runs), 4) if runs else None


def _weighed_outside(
    work: TrainingWork | ScriptWork, machines: Sequence[InstanceType]
) -> tuple[PlanCandidate, ...]:
    """Return the job on a machine outside AWS, the cheapest first."""
    offers = priced_outside(machines)
    alone = replace(work.job.machine, market=("on_demand",), instance=(), nodes=1)
    job = replace(work.job, machine=alone)
    load = replace(work, job=job).weighed(offers, no_account(job, ""))
    keeps = work.keeps_checkpoints
    weighed = weigh(job, load.work, offers, place=ACCOUNT, rates=load.rates, keeps_checkpoints=keeps)
    return weighed.candidates


def _document(advice: Advice) -> dict[str, Any]:
    return {
        "job": advice.work.job.to_dict(),
        "data": advice.work.data,
        **advice.plan.to_dict(),
        "outside": [{**one.to_dict(), "source": one.machine.source} for one in advice.outside],
        "choice": advice.choice.to_dict() if advice.choice else None,
        "pay": advice.pay.to_dict() if advice.pay else None,
        "notes": list(advice.notes),
    }


COLUMNS = (
    *("seller", "instance_type", "market", "gpus", "gpu_model", "nodes", "price_usd_per_hour", "price_date"),
    *("seconds_p50", "seconds_p90", "boot", "stage", "train", "upload", "lost"),
    *("dollars_p50", "dollars_p90", "sagemaker_dollars", "source", "refused", "note"),
    *("way", "usd_per_month", "once", "weekly", "daily", "always_on"),
)


def _as_csv(candidates: Sequence[PlanCandidate], pay: WaysToPay | None) -> str:
    """Return a line for each candidate, and one for each way to pay for the recommended type."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for one in candidates:
        row = one.to_dict()
        seconds, usd = row["seconds"] or {}, row["dollars"] or {}
        between = {
            f"{name}_{part}": values.get(part, "")
            for name, values in (("seconds", seconds), ("dollars", usd))
            for part in ("p50", "p90")
        }
        writer.writerow({**row, **seconds, **between})
    for way in pay.ways if pay else ():
        row = way.to_dict()
        price = {"instance_type": pay.instance_type if pay else "", "price_usd_per_hour": row["usd_per_hour"]}
        writer.writerow({**row, **price})
    return text.getvalue()
