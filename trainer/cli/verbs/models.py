"""`mayfly models ACTION`: list, download, compare, promote, verify and delete the models in the bucket."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from datetime import timedelta
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from trainer.aws.error_codes import PERMISSION
from trainer.aws.objects import Objects, Stored, open_objects
from trainer.aws.stack import read_stack
from trainer.base.arguments import check_folder
from trainer.base.errors import PermissionDenied, TrainerError, TrainingFailed, UsageError
from trainer.base.files import HeldFolder
from trainer.base.instants import iso, utc_now
from trainer.base.text import counted, some_of
from trainer.cli.connect import connected, same_place
from trainer.cli.output import lacks, say, say_json, warn
from trainer.cli.terminal import show
from trainer.cli.views.models import (
    comparison_view,
    decision_view,
    differences_view,
    models_table,
    production_table,
    prune_lines,
    prune_table,
    verified_view,
)
from trainer.cli.views.trading import traded_json
from trainer.data.read.paths import check_path
from trainer.job.reading import job_from
from trainer.retrains.schedule import BETTER, SHADOW, read_schedules
from trainer.runs.outcome import EXIT_CODES
from trainer.runs.store import read_record
from trainer.store.comparison import Side, TooFewShared, compare_sides, returns_by_day
from trainer.store.decisions import decisions_about, is_unnoted, note_by_hand, unnoted_roll_back
from trainer.store.differences import differences
from trainer.store.listing import (
    FETCHED_AT_ONCE,
    Model,
    card_of,
    fetch_models,
    find_model,
    list_models,
    named_models,
    save_model,
    side_of,
)
from trainer.store.production import (
    chosen_version,
    production_histories,
    production_name,
    production_names,
    production_versions,
    promote,
    roll_back,
    sha256_of,
    versions_of,
)
from trainer.store.pruning import LEAST_AGE, PruneRule, StoredModel, plan_pruning, prune
from trainer.store.verification import verify
from trainer.targets.trading import effective_trials

MOST_AGE_DAYS = 36_500  # a hundred years
NO_RIGHT = (
    "It takes s3:PutObject on models/production/*, which the launcher policy does not give: ask an"
    " administrator of the stack (docs/security.md)."
)
NO_PRUNE_RIGHT = "It takes the stack's policy prune_policy_arn: ask an administrator (docs/security.md)."


def run(arguments: argparse.Namespace) -> int:
    """List models with run, version and test scores; download one; show production models, promote one and
    roll one back.
    """
    if arguments.action == "pull":
        check_folder(Path(arguments.out or "."))
    with connected(rehearse=arguments.rehearse, program=False, local=arguments.local) as access:
        outputs = read_stack(access, stack=arguments.stack)
        objects, days = open_objects(access, outputs.bucket), outputs.experiment_days
        if arguments.action == "pull":
            model = find_model(objects, arguments.model)
            path = save_model(objects, model, Path(arguments.out or "."))
            say_json({**_as_dict(model, days), "path": str(path)}) if arguments.json else say(str(path))
            return 0
        if arguments.action == "promote":
            return _promote(arguments, objects)
        if arguments.action == "rollback":
            return _roll_back(arguments, objects)
        if arguments.action == "production":
            return _production(arguments, objects)
        if arguments.action == "compare":
            return _compare(arguments, objects)
        if arguments.action == "diff":
            return _diff(arguments, objects)
        if arguments.action == "verify":
            return _verify(arguments, objects)
        if arguments.action == "prune":
            return _prune(arguments, objects, outputs.retrains)
        listing = list_models(objects)
        models, problems = listing.models, listing.problems
    if arguments.json:
        unread = {run_id: error.as_dict() for run_id, error in problems.items()}
        say_json({"models": [_as_dict(model, days) for model in models], "problems": unread})
    else:
        show(models_table(models, days)) if models else say("no models yet")
    return lacks(problems, as_json=arguments.json)


def _prune(arguments: argparse.Namespace, objects: Objects, retrains: Sequence[Mapping[str, Any]]) -> int:
    """List the models that a rule deletes, and what is kept; with --delete, delete them."""
    if not LEAST_AGE.days <= arguments.older_than <= MOST_AGE_DAYS or arguments.keep < 0:
        why = "a retrain's models are scored by other machines within hours"
        do = f"Give --older-than {LEAST_AGE.days} to {MOST_AGE_DAYS:,}, and --keep 0 or more."
        raise UsageError(f"--older-than is {arguments.older_than}, --keep {arguments.keep}", why=why, do=do)
    rule = PruneRule(
        older_than=timedelta(days=arguments.older_than),
        keep_runs=arguments.keep,
        shadows=tuple(
            one.name for one in read_schedules(retrains) if (one.promote, one.gate) == (BETTER, SHADOW)
        ),
    )
    now = utc_now()
    pruning = plan_pruning(objects, rule, now)
    gone: list[StoredModel] = []
    try:
        if arguments.delete:
            prune(objects, pruning, rule, now, deleted=gone.append)
    except TrainerError as error:
        done = f"{len(gone):,} of {counted(len(pruning.chosen), 'model')} {'is' if len(gone) == 1 else 'are'}"
        do = NO_PRUNE_RIGHT if error.do == PERMISSION.remedy else error.do
        error.do = f"{done} deleted; the same command deletes the rest. {do}" if gone else do
        raise
    if arguments.json:
        unread = {run_id: error.as_dict() for run_id, error in pruning.problems.items()}
        chosen = [asdict(one) | {"modified_at": iso(one.modified_at)} for one in pruning.chosen]
        kept, deleted = dict(pruning.kept), [one.key for one in gone]
        say_json(
            {"models": chosen, "kept": kept, "bytes": pruning.bytes, "deleted": deleted, "problems": unread}
        )
        return lacks(pruning.problems, as_json=True)
    if pruning.chosen:
        show(prune_table(pruning))
    for line in prune_lines(pruning, deleted=gone if arguments.delete else None):
        say(line)
    return lacks(pruning.problems, as_json=False)


def _production(arguments: argparse.Namespace, objects: Objects) -> int:
    """List the production models, or the versions of one, newest first."""
    if arguments.model:
        versions = list(production_versions(objects, arguments.model))
    else:
        versions = list(chain.from_iterable(production_histories(objects).values()))
    decisions = decisions_about(objects, [production_name(one.key) for one in versions])
    if arguments.json:
        told = {name: asdict(one) | {"decided_at": iso(one.decided_at)} for name, one in decisions.items()}
        say_json({"production": [_version(one) for one in versions], "decisions": told})
    elif versions:
        show(production_table(versions))
        for decision in decisions.values():
            show(decision_view(decision))
    else:
        say("no production models yet")
    return 0


def _diff(arguments: argparse.Namespace, objects: Objects) -> int:
    """Show what differs between a production model and another model, or an older version of itself."""
    if arguments.other and arguments.version:
        do = "Leave one out: a version is one of the production model's own."
        raise UsageError(f"MODEL {arguments.other} and --version don't go together", do=do)
    current, *older = production_versions(objects, arguments.model)
    name = production_name(current.key)
    if arguments.other:
        model = find_model(objects, arguments.other)
        other = (model.full_name, model.key, model.version_id)
    else:
        version = chosen_version(objects, current, older, arguments.version)
        if version is None:
            do = f"Name a model, or a version that mayfly models production {name} shows."
            raise UsageError(f"there is nothing to compare {name} with", do=do)
        other = (f"version {version.version_id}", current.key, version.version_id)
    places = ((name, current.key, current.version_id), other)
    cards = [card_of(objects, key=key, version_id=version_id) for _, key, version_id in places]
    if None in cards:
        without = next(place[0] for place, card in zip(places, cards, strict=True) if card is None)
        raise UsageError(f"{without} has no card", why="Mayfly did not make it", do="Name another model.")
    first, second = (card for card in cards if card is not None)
    found = differences(first, second)
    if arguments.json:
        say_json({"first": name, "second": other[0], "differences": [asdict(one) for one in found]})
    else:
        show(differences_view(found, name, other[0])) if found else say("their cards differ in nothing")
    return 0


def _verify(arguments: argparse.Namespace, objects: Objects) -> int:
    """Verify production models; return 100 if anything about one does not agree."""
    if arguments.models:
        newest = [production_versions(objects, name)[0] for name in arguments.models]
    else:
        newest = [versions[0] for versions in production_histories(objects).values()]
    with ThreadPoolExecutor(FETCHED_AT_ONCE) as pool:
        found = list(pool.map(partial(verify, objects), newest))
    if arguments.json:
        known = ("name", "version_id", "sha256", "origin")
        say_json(
            {"models": [{**{key: getattr(one, key) for key in known}, "flaws": one.flaws} for one in found]}
        )
    elif found:
        show(verified_view(found))
    else:
        say("no production models yet")
    return TrainingFailed.exit_code if any(one.flaws for one in found) else 0


def _compare(arguments: argparse.Namespace, objects: Objects) -> int:
    """Compare what the arguments name, each beside the first; show one alone with what trading on it made and
    how reliable its probabilities are.
    """
    sides = [side_of(objects, name) for name in arguments.models]
    for side in sides:
        if side.gone:
            warn(f"left out of {side.name}, expired or deleted: {some_of(side.gone, 3)}")
    if arguments.data:
        check_path(arguments.data)
        sides = _with_data(objects, sides, Path(arguments.data))
    title, rows = compare_sides(sides) if len(sides) > 1 else ("", [])
    cards = [card for side in sides for card in side.cards]
    trials = effective_trials([returns_by_day(card) for card in cards if card.trades])
    if arguments.json:
        runs = [{"name": one.name, "dollars": one.dollars, "seconds": one.seconds} for one in sides]
        told = [asdict(row) for row in rows]
        traded = {"trials": trials, "traded": traded_json(sides, trials)}
        known = [{"piece": card.piece, **card.reliability} for card in cards if card.reliability]
        reliable = {"reliability": known} if len(sides) == 1 else {}
        say_json(
            {"reference": sides[0].name, "score": title, "sides": runs, "rows": told, **traded, **reliable}
        )
    else:
        show(comparison_view(sides, title, rows, trials=trials))
    return 0


def _with_data(objects: Objects, sides: list[Side], data: Path) -> list[Side]:
    """Return the sides, scored again if they share too few cells, else with the average of each run's models
    as one more.
    """
    try:
        if len(sides) > 1:
            compare_sides(sides)
    except TooFewShared:
        return _scored_again(objects, sides, data)
    return [*sides, *(_ensemble(objects, side, data) for side in sides)]


def _scored_again(objects: Objects, sides: list[Side], data: Path) -> list[Side]:
    """Return the sides with losses on bars that none of their models has seen, as the job of the newest model
    plans them.
    """
    from trainer.train.ensemble import unseen_cards  # late: torch takes a second to load

    named = [named_models(objects, side.name)[1] for side in sides]
    of_runs = [one for models in named for one in models if one.run_id]
    if not of_runs:
        why = "only a run's job says how its candles are read, and these are models in production"
        raise UsageError("the models can't be scored again", why=why, do="Name one of them as RUN/NAME.")
    newest = max(of_runs, key=lambda one: one.created_at)
    record, _ = read_record(objects, newest.run_id)
    with HeldFolder("models") as folder:
        paths = [fetch_models(objects, models, Path(folder) / str(n)) for n, models in enumerate(named)]
        cards = unseen_cards(job_from(record.job), data, paths)
    warn(f"they share too few cells: scored again on the bars of {data} that none of them has seen")
    return [replace(side, cards=tuple(made)) for side, made in zip(sides, cards, strict=True)]


def _ensemble(objects: Objects, side: Side, data: Path) -> Side:
    """Return the average of a run's models of one symbol as a side of its own. Raises UsageError for a
    model.
    """
    run_id, models = named_models(objects, side.name)
    if not run_id:
        why, do = "it is one model, scored on the same bars as the others", "Name a run, or no --data."
        raise UsageError(f"{side.name} has no average", why=why, do=do)
    from trainer.train.ensemble import ensemble_cards  # late: torch takes a second to load

    record, _ = read_record(objects, side.name)
    with HeldFolder("models") as folder:
        paths = fetch_models(objects, models, Path(folder))
        cards = ensemble_cards(job_from(record.job), data, paths)
    return replace(side, name=f"average of {side.name}", cards=tuple(cards))


def _promote(arguments: argparse.Namespace, objects: Objects) -> int:
    """Put a model of an ended run in production, whatever its scores. Raises UsageError for a run that goes
    on.
    """
    model = find_model(objects, arguments.model, stage="experiment")
    if model.state not in EXIT_CODES:  # its receipt will have the hash that is verified
        raise UsageError(f"run {model.run_id} has not ended", do="Promote its models then.")
    record, _ = read_record(objects, model.run_id)
    group = arguments.group or job_from(record.job).data.set
    replaces = f"{group}/{model.name}" in production_names(objects)
    try:
        changed = promote(objects, vars(model), group=group)
    except PermissionDenied as error:
        if error.do == PERMISSION.remedy:  # not of credentials that have expired
            error.do = NO_RIGHT
        raise
    if changed or is_unnoted(objects, f"{group}/{model.name}"):
        made: Any = {"sha256": model.sha256, "run_id": model.run_id}
        note_by_hand(objects, f"{group}/{model.name}", "promoted by hand", utc_now(), **made)
    if arguments.json:
        say_json(
            {
                "promoted": changed,
                "run_id": model.run_id,
                **_version(versions_of(objects, f"{group}/{model.name}")[0]),
            }
        )
        return 0
    if model.synthetic:
        warn(f"{model.name} was trained on SYNTHETIC bars: it knows nothing of any market")
    from_run = f"{model.name} of run {model.run_id}"
    say(f"{from_run} is in production" if changed else f"{from_run} was in production already")
    if changed and replaces:
        warn(f"to take it back: mayfly models rollback {group}/{model.name}{same_place(arguments)}")
    return 0


def _roll_back(arguments: argparse.Namespace, objects: Objects) -> int:
    broken_off = None if arguments.version else unnoted_roll_back(objects, arguments.model)
    replaced, put = broken_off or roll_back(objects, arguments.model, version_id=arguments.version)
    reason = f"rolled back by hand to version {put.version_id}"
    note_by_hand(objects, production_name(put.key), reason, utc_now(), sha256=sha256_of(objects, put))
    if arguments.json:
        say_json({"replaced": _version(replaced), "put": _version(put)})
    else:
        version = f"version {put.version_id} of {put.modified_at:%Y-%m-%d %H:%M} UTC"
        say(f"{production_name(put.key)}: {version} is in production again")
        warn(f"what it replaced stays as version {replaced.version_id}")
    return 0


def _version(stored: Stored) -> dict[str, object]:
    found = {"name": production_name(stored.key), "key": stored.key, "version_id": stored.version_id}
    return {**found, "bytes": stored.size, "modified_at": iso(stored.modified_at)}


def _as_dict(model: Model, days: int) -> dict[str, object]:
    fields = {name: value for name, value in vars(model).items() if name != "stored_after"}
    return {**fields, "created_at": iso(model.created_at), "expires": str(model.expires(days) or "") or None}
