"""The gate: have a retrain's models scored beside those in production, and decide which of them replace them.

Nothing that a training node claims counts. A score run, on a machine and role of its own, scores champion and
challenger by version and hash on windows of the data that control pinned; control reads its scores strictly
and decides by `targets.gate`. If anything fails, the champion stays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from trainer.aws.objects import Objects, Stored
from trainer.base.errors import BudgetError, ConfigError, ConnectionFailed, DataError, TrainerError
from trainer.base.instants import from_iso
from trainer.base.strict_json import Unsound, instant
from trainer.control.retrain_home import RetrainHome
from trainer.data.timeframes import DAY, step_of
from trainer.job.job import Job
from trainer.job.model_names import MODEL_SUFFIX
from trainer.job.reading import job_from
from trainer.launch.bundle import BundleName
from trainer.launch.cpu_run import SCORE, plan_cpu_run
from trainer.launch.inputs import list_inputs
from trainer.launch.planning import Planned
from trainer.launch.tasks import PLAN_FILE
from trainer.launch.work import Score
from trainer.retrains.decision import refuse_beyond_month
from trainer.retrains.entries import ScheduledRun, score_run_id_of
from trainer.retrains.schedule import BETTER, SHADOW, RetrainSchedule
from trainer.runs.manifest import DATA, GIVEN, Manifest, ManifestInput, read_manifest
from trainer.runs.record import RunRecord
from trainer.runs.store import manifest_key, read_record
from trainer.runs.stored_receipt import read_receipt
from trainer.store.decisions import (
    GateDecision,
    ModelVersion,
    UnreadableDecision,
    create_decisions,
    decisions_key,
    read_decision,
    write_decision,
)
from trainer.store.production import champion_of, file_of, kept_key, replace_champion
from trainer.store.scores import (
    ASKED_FILE,
    MOST_SCORES_BYTES,
    SCORES_FILE,
    Asked,
    AskedModel,
    AskedPiece,
    ScoredPiece,
    Side,
    asked_from,
    read_scores,
)
from trainer.targets.gate import decide

SECOND = 1_000_000_000
AT_ONCE = 10
LONGEST_SECONDS = 3650 * 86_400.0  # that a challenger waits for newer bars, whatever its cells
MOST_NAMED = 3  # pieces, in the sentence about a decision
DO = "The champion stays; promote by hand if the model is wanted: mayfly models promote."


@dataclass(frozen=True, kw_only=True)
class LastBars:
    """The last bar of each symbol in a data set, in seconds since 1970: all of it, and what a run read."""

    now: Mapping[str, int]
    read: Mapping[str, int]


def reserved_usd(home: RetrainHome, schedule: RetrainSchedule, *, pinned_image: str) -> float:
    """Return the dollars that a score run may cost, which the training before it leaves; 0 without a gate."""
    if schedule.promote != BETTER:
        return 0.0
    return plan_cpu_run(SCORE, home.account, budget_usd=0.0, pinned_image=pinned_image)[1].hard_stop_usd


def begin_scoring(home: RetrainHome, entry: ScheduledRun, schedule: RetrainSchedule) -> ScheduledRun:
    """Register the run that scores the challengers, and return the entry in state `scoring`; an entry without
    that state has none to score. Raises a TrainerError if it can't be planned.
    """
    run_id = score_run_id_of(entry.retrain, entry.scheduled_at)
    if home.is_registered(run_id):  # an earlier call ended between this write and the entry's
        return replace(entry, state="scoring", score_run_id=run_id, most_usd=schedule.budget)
    challenger = challengers_run(home, entry, schedule)
    if not challenger:
        waits = f"no model has {schedule.least_cells} cells of bars that came after it and its champion yet"
        return replace(entry, gate=waits)
    began, left = home.cloud.now(), schedule.budget - entry.spent_usd
    if left <= 0:
        what, why = f"nothing is left of the budget of retrain {entry.retrain}", "its training took all of it"
        raise BudgetError(what, why=why, do="Raise budget of the stack's setting `retrains`.")
    work, image = _work(home, entry, schedule, challenger)
    offers, plan = plan_cpu_run(SCORE, home.account, budget_usd=left, pinned_image=image)
    most = entry.spent_usd + plan.hard_stop_usd
    refuse_beyond_month(schedule, entry, home.others(entry), most)
    home.register(Planned(work=work, offers=offers, plan=plan), run_id, began)
    return replace(entry, state="scoring", score_run_id=run_id, most_usd=most)


def challengers_run(home: RetrainHome, entry: ScheduledRun, schedule: RetrainSchedule) -> str:
    """Return the run whose models are scored at a scheduled time: its own; or with the gate `shadow` the
    newest earlier one without a decision whose models have enough newer bars, as far as the last score run
    tells. '' if there is none.
    """
    if schedule.gate != SHADOW:
        return entry.run_id
    objects, now = home.cloud.objects, home.cloud.now()
    cells = _cell(job_from(_manifest(objects, entry.run_id).job)) * schedule.least_cells
    needed = timedelta(seconds=min(cells, LONGEST_SECONDS))
    # twice the time: the newest bars may be old, too, and some days have none
    entries = home.entries(entry.retrain, back=2 * needed)
    before = [one for one in reversed(entries) if one.scheduled_at < entry.scheduled_at]
    shares = (_share_of_cells(objects, one.score_run_id) for one in before if one.score_run_id)
    share = next(filter(None, shares), 1.0)
    for earlier in before:
        if earlier.state != "done" or not earlier.run_id:
            continue
        if objects.head(key=decisions_key(entry.retrain, earlier.run_id)) is not None:
            return ""  # those before it were passed over
        if now - earlier.scheduled_at < needed:
            continue  # it can't have enough yet
        job, asked, _ = _asked(home, entry, schedule, earlier.run_id)
        if any(share * _cells_left(job, asked, one) >= schedule.least_cells for one in asked.pieces):
            return earlier.run_id
    return ""


def _share_of_cells(objects: Objects, score_run_id: str) -> float:
    """Return the share of the cells after its `since` of which a score run has scores, of the piece with the
    most: stocks have none on weekends. 0 if it left none.
    """
    try:
        job, asked, scored = _scored(objects, read_record(objects, score_run_id, seen=True)[0])
    except ConnectionFailed:
        raise
    except TrainerError:
        return 0.0
    shares = [
        len(made.begins) / most
        for one in asked.pieces
        if one.since and (made := scored[one.piece].challenger) and (most := _cells_left(job, asked, one)) > 0
    ]
    return min(1.0, max(shares, default=0.0) * (1 + 1e-9))  # rounding puts no decision off


def _cells_left(job: Job, asked: Asked, piece: AskedPiece) -> float:
    """Return at most how many cells lie after a piece's `since`."""
    return (asked.until - piece.since) / _cell(job)


def _cell(job: Job) -> float:
    """Return the seconds of a cell: a day, or the reach of a label where that is longer."""
    return max(DAY, job.target.bars_ahead * step_of(job.data.timeframe)) / SECOND


def _work(
    home: RetrainHome, entry: ScheduledRun, schedule: RetrainSchedule, challenger: str
) -> tuple[Score, str]:
    """Return the work of a score run, and the image that the challenger's had."""
    job, asked, models = _asked(home, entry, schedule, challenger)
    made = _manifest(home.cloud.objects, challenger)
    data = made if challenger == entry.run_id else _manifest(home.cloud.objects, entry.run_id)
    candles = [item for item in data.inputs if item.path.startswith(f"{DATA}/")]
    given = [item for item in made.inputs if item.path.startswith(f"{GIVEN}/")]
    plan = f"{GIVEN}/{PLAN_FILE}"
    work = Score(
        job=job,
        code=BundleName(sha256=made.code["sha256"], lock_sha256=made.lock_sha256),
        inputs=(*candles, *(item for item in given if item.path != plan), *models),
        documents={ASKED_FILE: asked.to_json()},
        scores_file=SCORES_FILE,
    )
    return work, made.image["id"]


def _manifest(objects: Objects, run_id: str) -> Manifest:
    stored = objects.get(key=manifest_key(run_id))
    try:
        if stored is None:
            raise Unsound("it is not there")
        return read_manifest(stored.body)
    except Unsound as error:
        raise ConfigError(f"cannot read the manifest of {run_id}", why=str(error), do=DO) from error


def _asked(
    home: RetrainHome, entry: ScheduledRun, schedule: RetrainSchedule, challenger: str
) -> tuple[Job, Asked, tuple[ManifestInput, ...]]:
    """Return the challengers' job, what is asked about them and their champions, and all models as inputs."""
    objects, receipt = home.cloud.objects, read_receipt(home.cloud.objects, challenger)
    if receipt is None or receipt["state"] != "done":
        raise ConfigError(f"run {challenger} is not done", do=DO)
    made = _manifest(objects, challenger)
    job, lasts = job_from(made.job), _last_bars(objects, made)
    closed = _seconds(from_iso(receipt["closed_at"])) if schedule.gate == SHADOW else 0

    def piece_of(model: Mapping[str, Any]) -> tuple[AskedPiece, list[ManifestInput]]:
        kept = _there(objects.head(key=kept_key(model, retrain=entry.retrain, run_id=challenger)))
        champion = champion_of(objects, model, group=entry.retrain)
        sides: list[tuple[Side, Stored, str]] = [("challenger", kept, str(model["sha256"]))]
        since = [0]
        if champion is not None:
            sides.append(("champion", champion, _hash(objects, champion)))
        if schedule.gate == SHADOW:  # bars that nobody had before the end of either training
            since += [closed, *(lasts.read.get(symbol, 0) + 1 for symbol in model["series"])]
            since += [_seconds(champion.modified_at)] if champion else []
        inputs = [_input(stored, sha256) for _, stored, sha256 in sides]
        models = tuple(
            AskedModel(
                side=side,
                path=item.path.removeprefix(f"{GIVEN}/"),
                key=stored.key,
                version_id=stored.version_id,
                sha256=sha256,
            )
            for (side, stored, sha256), item in zip(sides, inputs, strict=True)
        )
        return AskedPiece(piece=str(model["piece"]), since=max(since), models=models), inputs

    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = list(pool.map(piece_of, receipt["models"]))
    if not found:
        raise ConfigError(f"run {challenger} has no model", do=DO)
    until = max((last for symbol, last in lasts.now.items() if symbol in job.data.symbols), default=0)
    files = {item.path: item for _, inputs in found for item in inputs}
    return job, Asked(pieces=tuple(piece for piece, _ in found), until=until), tuple(files.values())


def _input(stored: Stored, sha256: str) -> ManifestInput:
    return ManifestInput(
        path=f"{GIVEN}/models/{sha256}{MODEL_SUFFIX}",
        key=stored.key,
        version_id=stored.version_id,
        sha256=sha256,
        bytes=stored.size,
    )


def _there(stored: Stored | None) -> Stored:
    if stored is None:
        raise ConfigError("a model of the run is gone from its permanent key", do=DO)
    return stored


def _hash(objects: Objects, stored: Stored) -> str:
    """Return the hash of a production model: S3's own, else that of its bytes."""
    return stored.checksum or objects.digest(key=stored.key, version_id=stored.version_id)


def _last_bars(objects: Objects, made: Manifest) -> LastBars:
    """Return the last bars of the set's files, and of those that a run read, by the data check's reports."""
    read = {item.key for item in made.inputs}
    now: dict[str, int] = {}
    then: dict[str, int] = {}
    data = made.job["data"]
    for item in list_inputs(objects, str(data["set"]), data.get("columns", ())):
        for held in item.summary["holds"] if item.summary else ():
            symbol, last = str(held["symbol"]), _time_of(str(held["last"]))
            now[symbol] = max(now.get(symbol, 0), last)
            if item.key in read:
                then[symbol] = max(then.get(symbol, 0), last)
    return LastBars(now=now, read=then)


def _time_of(text: str) -> int:
    try:
        return _seconds(instant(text))
    except Unsound as error:
        raise ConfigError("an index entry of the set can't be used", why=str(error), do=DO) from error


def _seconds(at: datetime) -> int:
    """Return an instant in whole seconds since 1970, rounded up."""
    return int(-(-at.timestamp() // 1))


def after_scoring(home: RetrainHome, entry: ScheduledRun, schedule: RetrainSchedule) -> ScheduledRun:
    """Decide by the scores of a score run that is closed, and carry the decisions out. Idempotent.

    Raises DataError for scores that are not those that were asked for, ConnectionFailed if AWS can't be
    reached: the next call continues.
    """
    objects = home.cloud.objects
    record, _ = read_record(objects, entry.score_run_id, seen=True)
    job, asked, scored = _scored(objects, record)
    if (schedule.gate == SHADOW) != any(one.since for one in asked.pieces):
        raise DataError("the retrain's gate was changed while its models were scored", do=DO)
    with ThreadPoolExecutor(AT_ONCE) as pool:  # each reads the last decision about its champion
        decide_on = partial(_decision, home, entry, schedule, job)
        decided = list(pool.map(decide_on, asked.pieces, [scored[one.piece] for one in asked.pieces]))
    cells = max(int(one.numbers.get("cells", 0)) for one in decided)
    if schedule.gate == SHADOW and cells < schedule.least_cells:
        return replace(entry, gate=f"{cells} cells of newer bars: they are scored again later")
    made = create_decisions(objects, entry.retrain, decided[0].run_id, decided)
    return _carried_out(objects, entry, made)


def _scored(objects: Objects, record: RunRecord) -> tuple[Job, Asked, dict[str, ScoredPiece]]:
    """Return a score run's job, what was asked, and the scores that its machine left. Raises DataError for
    others than asked.
    """
    manifest = _manifest(objects, record.run_id)
    job = job_from(manifest.job)
    keys = [f"{keys.folder}{SCORES_FILE}" for keys in record.nodes]
    left = [objects.get(key=key, first_bytes=MOST_SCORES_BYTES + 1) for key in keys]
    bodies = [stored.body for stored in left if stored]
    try:
        if not bodies:
            raise Unsound("there are none")
        asked = asked_from(manifest.documents.get(ASKED_FILE))
        return job, asked, read_scores(bodies[-1], asked, proper=job.target.proper)
    except Unsound as error:
        what = f"the scores of {record.run_id} can't be used"
        raise DataError(what, why=str(error), do=DO) from error


def _decision(
    home: RetrainHome,
    entry: ScheduledRun,
    schedule: RetrainSchedule,
    job: Job,
    asked: AskedPiece,
    scored: ScoredPiece,
) -> GateDecision:
    """Return the decision about one piece, by its scores alone."""
    challenger, champion = _version(asked.of("challenger")), _version(asked.of("champion"))
    if challenger is None:
        raise DataError(f"nothing was asked about the challenger {asked.piece}", do=DO)
    name = f"{entry.retrain}/{file_of(vars(challenger)).removesuffix(MODEL_SUFFIX)}"
    promote, reason, numbers, challenge = False, scored.reason, dict[str, Any](), 0
    try:
        challenge = _challenge(home.cloud.objects, name, champion)
        if scored.challenger is not None:
            made = decide(
                job.target,
                schedule.rule,
                challenger=scored.challenger,
                champion=scored.champion,
                challenge=challenge,
                tried=job.search.num_trials if job.search.over else 1,  # its own count is its node's word
            )
            promote, reason, numbers = made.promote, made.reason, dict(made.numbers)
    except UnreadableDecision as error:  # how many decisions there were is not known
        reason = str(error)
    return GateDecision(
        piece=asked.piece,
        name=name,
        run_id=challenger.key.split("/")[-2],  # its permanent key has it
        score_run_id=entry.score_run_id,
        decided_at=home.cloud.now(),
        gate=schedule.gate,
        challenge=challenge,
        promote=promote,
        reason=reason,
        challenger=challenger,
        champion=champion,
        numbers=numbers,
    )


def _version(model: AskedModel | None) -> ModelVersion | None:
    if model is None:
        return None
    return ModelVersion(key=model.key, version_id=model.version_id, sha256=model.sha256)


def _challenge(objects: Objects, name: str, champion: ModelVersion | None) -> int:
    """Return how many decisions about this champion there will have been. Raises ConfigError."""
    last = read_decision(objects, name)
    own = champion.sha256 if champion else ""
    return last.challenge + 1 if last and not last.promote and last.winner == own else 1


def _carried_out(objects: Objects, entry: ScheduledRun, made: Sequence[GateDecision]) -> ScheduledRun:
    """Promote the models that were decided for, and write each decision beside its production model."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        outcomes = list(pool.map(partial(_carry_out, objects, entry.retrain), made))
    promoted = tuple(one.piece for one, why in zip(made, outcomes, strict=True) if one.promote and not why)
    kept = [
        f"{one.piece} stays: {why or one.reason}"
        for one, why in zip(made, outcomes, strict=True)
        if why or not one.promote
    ]
    told = f"{len(promoted)} of {len(made)} go to production"
    return replace(entry, promoted=promoted, gate="; ".join([told, *kept[:MOST_NAMED]]))


def _carry_out(objects: Objects, retrain: str, decision: GateDecision) -> str:
    """Carry out one decision; return why it could not be, '' if it was."""
    champion = decision.champion
    if decision.promote:
        model = vars(decision.challenger)
        version = champion.version_id if champion else ""
        try:
            if replace_champion(objects, model, group=retrain, version_id=version) is None:
                return "its champion was replaced meanwhile"
        except ConnectionFailed:
            raise
        except TrainerError as error:
            return str(error)
    else:
        there = champion_of(objects, vars(decision.challenger), group=retrain)
        if (there.version_id if there else "") != (champion.version_id if champion else ""):
            return "its champion was replaced meanwhile"
    write_decision(objects, decision)
    return ""
