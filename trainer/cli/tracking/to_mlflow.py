"""Write a run to MLflow, by its client and its own variables (MLFLOW_TRACKING_URI and others).

One run of MLflow for each run, in the experiment of the job's name. It is found by its tag, so a run that is
complete there stays as it is, and one that was broken off is written again into the same place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag
from mlflow.exceptions import MlflowException

from trainer.base import environment
from trainer.base.errors import ConfigError
from trainer.cli.tracking.reading import TrackedRun

RUN_TAG, DONE_TAG = "mayfly.run_id", "mayfly.tracked"  # the second one is set last
# Of one request (mlflow/utils/validation.py, MLflow 3.17, looked up 2026-11-27).
MOST_METRICS, MOST_PARAMS = 1_000, 100
STATUS = {"done": "FINISHED", "stopped": "KILLED"}  # of others: FAILED


def write(run: TrackedRun) -> tuple[str, bool]:
    """Write a run; return its page, and whether it was complete there."""
    server, number, name = environment.mlflow_places()
    if not server:  # MLflow's own default is a file in the current folder
        do = "Export it, such as http://localhost:5000."
        raise ConfigError("MLFLOW_TRACKING_URI is not set", do=do)
    client = MlflowClient()
    experiment = number or _experiment(client, name or run.job)
    found = client.search_runs([experiment], f"tags.`{RUN_TAG}` = '{run.run_id}'", max_results=1)
    if found and DONE_TAG in found[0].data.tags:
        return _page(client, experiment, found[0].info.run_id), True
    began, ended = round(run.began * 1000), round(run.ended * 1000)
    tags = {**run.tags, RUN_TAG: run.run_id, "mlflow.note.content": run.verdict}
    if found:
        made = found[0].info.run_id
    else:
        made = client.create_run(experiment, began, tags, run_name=run.run_id).info.run_id
    for params in _some([Param(*item) for item in run.settings.items()], MOST_PARAMS):
        client.log_batch(made, params=params)
    scores = [Metric(name, value, ended, 0) for name, value in run.scores.items()]
    points = [Metric(name, value, round(at * 1000), step) for name, step, value, at in run.points]
    for metrics in _some([*scores, *points], MOST_METRICS):
        client.log_batch(made, metrics=metrics)
    client.log_batch(made, tags=[RunTag(DONE_TAG, str(len(scores) + len(points)))])
    client.set_terminated(made, STATUS.get(run.state, "FAILED"), end_time=ended)
    return _page(client, experiment, made), False


def _experiment(client: MlflowClient, name: str) -> str:
    """Return the id of the experiment of this name, which may be new."""
    if (found := client.get_experiment_by_name(name)) is not None:
        return str(found.experiment_id)
    try:
        return str(client.create_experiment(name))
    except MlflowException:  # another desk has just made it
        if (found := client.get_experiment_by_name(name)) is None:
            raise
        return str(found.experiment_id)


def _page(client: MlflowClient, experiment: str, run: str) -> str:
    address = str(client.tracking_uri)
    web = address.startswith(("http://", "https://"))
    return (
        f"{address.rstrip('/')}/#/experiments/{experiment}/runs/{run}" if web else f"run {run} in {address}"
    )


def _some(items: Sequence[Any], most: int) -> Iterator[Sequence[Any]]:
    for first in range(0, len(items), most):
        yield items[first : first + most]
