"""The job: every setting of a run, in tables by owner: `name` and `track`, then [data], [model], [target],
[agent], [train], [expert], [search] and [machine].

The keys of a table, with types, defaults and units, are declared by their owners. This module joins the
tables and checks them together; `reading.py` reads them. Standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from trainer import models, targets
from trainer.base.errors import UsageError
from trainer.base.extras import EXTRAS
from trainer.base.own_file import OwnFile
from trainer.base.settings import (
    CHUNKS,
    HomeSettings,
    ModelCost,
    ModelSettings,
    bad_value,
    setting,
)
from trainer.data.table import WALK, DataSettings
from trainer.job.agent import AgentSettings
from trainer.job.machine import MachineSettings
from trainer.job.script import ScriptSettings
from trainer.job.script_values import columns_of
from trainer.job.search import SearchSettings
from trainer.job.tables import (
    DATA_OF_A_SCRIPT,
    HOMES,
    NOT_OF_A_SCRIPT,
    TABLES,
    Tables,
)
from trainer.job.train import BATCH_OF_THE_MODEL, ExpertSettings, TrainSettings
from trainer.targets.target import TargetSettings

MOST_MODELS = 20_000  # of one run: what a result and a receipt may list (runs.reports)
MAX_JOB_NAME = 24  # a schedule's name ends at 64 characters: <project>-<run id>-<purpose>


@dataclass(frozen=True, kw_only=True)
class Job:
    """A job: its name and its tables; [script] takes the place of those of a model."""

    name: str = setting(
        "mayfly", "Name of the job, in run ids: lower case letters, digits and dashes, 24 at most."
    )
    track: tuple[str, ...] = setting(
        (),
        "Trackers to which the desk writes the run when it ends: mlflow, wandb. Machines and control ignore"
        " it.",
    )
    data: DataSettings = field(default_factory=DataSettings)
    model: ModelSettings = field(default_factory=lambda: models.MODELS[models.DEFAULT]())
    target: TargetSettings = field(default_factory=lambda: targets.TARGETS[targets.DEFAULT]())
    agent: AgentSettings = field(default_factory=AgentSettings)
    train: TrainSettings = field(default_factory=TrainSettings)
    expert: ExpertSettings = field(default_factory=ExpertSettings)
    search: SearchSettings = field(default_factory=SearchSettings)
    machine: MachineSettings = field(default_factory=MachineSettings)
    script: ScriptSettings = field(default_factory=ScriptSettings)
    # Keys in the text that it was parsed from, named with their tables.
    given: frozenset[str] = field(default=frozenset(), compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.script.command:
            self.script.check_columns(self.columns, "search.over" if self.search.over else "script.over")
        if self.script.command and not self.machine.max_duration:
            why = "how long it takes is not known, and the machine has to end"
            raise UsageError(
                "a script needs machine.max_duration", why=why, do="Set it, such as --max-duration 2h."
            )
        if self.script.ray and self.machine.nodes == 1:
            why, do = "it is Ray over several machines", "Set machine.nodes, or leave script.ray out."
            raise UsageError("script.ray without machine.nodes", why=why, do=do)
        if self.data.folder and not self.script.command:
            do = "Name candles with data.path, or a script with script.command."
            raise UsageError("data.folder without a script", why="it is the data of a script", do=do)
        if not re.fullmatch(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?", self.name) or len(self.name) > MAX_JOB_NAME:
            expected = f"at most {MAX_JOB_NAME} lower case letters, digits and dashes"
            raise bad_value("name", self.name, expected)
        if wrong := [one for one in self.track if one not in EXTRAS["track"]]:
            raise bad_value("track", wrong[0], " or ".join(EXTRAS["track"]))
        if self.target.has_environment:
            self._check_environment()
        if self.train.batch == BATCH_OF_THE_MODEL:
            object.__setattr__(self, "train", replace(self.train, batch=self.model.default_batch))
        self._check_count()
        self._check_training()
        self._check_agent()

    def _check_count(self) -> None:
        """Raise UsageError for more models than a run may have."""
        symbols, folds, seeds = max(1, len(self.data.symbols)), self.data.folds, self.train.seeds
        trials = self.search.num_trials + 1 if self.search.over else 1
        if (count := symbols * folds * seeds * trials) > MOST_MODELS:
            one_of_all = self.data.pooled or self.data.panel
            made = (
                f"this job's models name {count:,} series"
                if one_of_all
                else f"this job makes {count:,} models"
            )
            why = f"{symbols:,} symbols x {folds:,} folds x {seeds:,} seeds"
            why += f" x {trials:,} trials with their winner" if trials > 1 else ""
            do = f"Train at most {MOST_MODELS:,} in one run: fewer symbols, folds, seeds or trials."
            raise UsageError(made, why=why, do=do)

    def _check_training(self) -> None:
        """Raise UsageError for settings of the training that do not fit each other or the model."""
        if self.expert.restart_epochs and self.train.schedule != "cosine":
            expected = "0 unless train.schedule is cosine"
            raise bad_value("expert.restart_epochs", self.expert.restart_epochs, expected)
        if self.train.batch == 0 and self.model.reads == CHUNKS:
            why, do = f"{self.model.name} reads chunks", "Set train.batch to 1 or more, or leave it out."
            raise UsageError("train.batch = auto is for models that read windows", why=why, do=do)
        if self.expert.activation_checkpointing and self.model.is_any_module:
            what, why = f"{self.model.title} can't compute its activations again", "it is your own module"
            raise UsageError(what, why=why, do="Leave expert.activation_checkpointing out.")
        if self.expert.compile == "always" and self.expert.strategy in ("fused", "streams"):
            what = f"expert.strategy = {self.expert.strategy} compiles nothing"
            do = "Leave expert.compile or expert.strategy out."
            raise UsageError(what, why="it is one recorded program", do=do)
        sliced = 0 < self.expert.micro_batch < self.train.batch
        if sliced and self.cost.is_measured and not self.cost.may_slice:
            why = "slices of a batch would give it another gradient, as batch norm does"
            do = "Leave expert.micro_batch out."
            raise UsageError(f"{self.model.title} can't train in slices", why=why, do=do)

    def _check_environment(self) -> None:
        """Raise UsageError for what can't act in an environment of the user's own; its policy reads one
        observation at a time.
        """
        why = "an agent in your environment sees its observation, and nothing else"
        if not self.model.takes_observations:
            names = (name for name, home in models.MODELS.items() if home.takes_observations)
            do = f"Set model.name = {', '.join(names)}."
            raise UsageError(f"a {self.model.name} can't act in an environment", why=why, do=do)
        if "model.lookback" in self.given and self.model.bars_seen != 1:
            do = "Leave model.lookback out; let the observation have as many bars as you want."
            raise UsageError(f"model.lookback is {self.model.bars_seen} in an environment", why=why, do=do)
        if self.data.pooled:
            do = "Leave data.pooled out: each symbol gets an agent of its own."
            raise UsageError("an environment can't be of several symbols", why="it is built over one", do=do)
        model: Any = self.model
        object.__setattr__(self, "model", replace(model, lookback=1))

    def _check_agent(self) -> None:
        """Raise UsageError for an [agent] table of a target that does not act, and for what an agent can't
        have.
        """
        if not self.target.acts:
            acting = ", ".join(name for name, home in targets.TARGETS.items() if home.acts)
            if any(key.startswith("agent.") for key in self.given):
                do = f"Leave [agent] out, or set target.name = {acting}."
                why = f"its target is {self.target.name}"
                raise UsageError("[agent] is not for this job", why=why, do=do)
            return
        if self.data.split != WALK:
            why, do = "its account lives through training in one piece", "Leave data.split out."
            raise UsageError("an agent can't train in k folds", why=why, do=do)
        agent, bars = self.agent, self.reads_of_step
        if self.model.reads == CHUNKS:
            names = ", ".join(name for name, home in models.MODELS.items() if home.reads != CHUNKS)
            why, do = f"{self.model.name} reads chunks", f"Set model.name to one that reads windows: {names}."
            raise UsageError("an agent is for models that read windows", why=why, do=do)
        if self.data.panel:
            why = "each account trades one series"
            do = "Leave data.panel out; data.pooled trains one agent on all symbols."
            raise UsageError("an agent can't be a panel's", why=why, do=do)
        if not self.train.batch:
            do = "Set train.batch to 1 or more, or leave it out."
            raise UsageError("train.batch = auto is not for agents", why="no trial times one", do=do)
        if self.train.distributed == "always":
            do = "Leave train.distributed out."
            raise UsageError("an agent is trained on one device", why="its batches are not shared", do=do)
        if getattr(self.model, "encoder", ""):
            raise UsageError("an agent can't start from an encoder", do="Leave model.encoder out.")
        if bars > 0 and bars % agent.lanes:
            why = f"a rollout has train.batch x agent.minibatches = {bars:,} bars, the same in each lane"
            do = f"Set agent.lanes to a number that divides {bars:,}."
            raise UsageError(f"a rollout can't be divided among {agent.lanes:,} lanes", why=why, do=do)

    @property
    def reads_of_step(self) -> int:
        """Return the windows, or chunks, of a step of the loop: a batch, or the rollout of an agent."""
        return self.train.batch * (self.agent.minibatches if self.target.acts else 1)

    @property
    def updates_of_step(self) -> int:
        """Return the optimizer steps of a step of the loop."""
        return self.agent.updates * self.agent.minibatches if self.target.acts else 1

    @property
    def cost_of_read(self) -> float:
        """Return the cost of a window, or chunk, in those of supervised training: an agent runs forward once
        to act, and forward and backward, three times as much, in each pass.
        """
        return (1 + 3 * self.agent.updates) / 3 if self.target.acts else 1.0

    def reads_of_epoch(self, reads: int) -> int:
        """Return how many of so many windows, or chunks, an epoch visits: all, or those of its steps. An
        agent's epochs are whole rollouts, about as many bars.
        """
        most = self.train.steps_per_epoch * self.train.batch
        if not self.target.acts:
            return min(reads, most or reads)
        step = self.reads_of_step
        if step <= 0:  # the batch of a model that has not been tried yet is not known
            return reads
        most //= self.agent.updates  # each pass takes its own optimizer steps
        return step * max(1, round(min(reads, most or reads) / step))

    @property
    def cost(self) -> ModelCost:
        """Return what training its model takes, with its inputs and outputs."""
        features = self.target.features(len(self.data.inputs))
        return self.model.cost(features=features, outputs=self.target.outputs)

    @property
    def columns(self) -> list[str]:
        """Return the names of the values that its script runs over; [] if it runs once."""
        return list(self.search.space) if self.search.over else columns_of(self.script.over)

    @property
    def gpus_each(self) -> float:
        """Return the GPUs of each piece of its script; 0: all, since it runs once."""
        return self.script.gpus or 1.0 if self.columns else 0.0

    @property
    def may_lack_gpus(self) -> bool:
        """Return whether machines without a GPU may do it: a script, and agents, which are small."""
        return bool(self.script.command) or self.target.acts

    @property
    def own_files(self) -> dict[str, OwnFile]:
        """Return the user's files of model, target and features, by table."""
        homes = {table: home for table in HOMES if isinstance(home := getattr(self, table), OwnFile)}
        return {**homes, **({"data": self.data.own} if self.data.own else {})}

    def with_data(self, **values: Any) -> Job:
        """Return the job with values of its [data] table replaced."""
        return replace(self, data=replace(self.data, **values))

    def with_train(self, **values: Any) -> Job:
        """Return the job with values of its [train] table replaced."""
        return replace(self, train=replace(self.train, **values))

    def with_expert(self, **values: Any) -> Job:
        """Return the job with values of its [expert] table replaced."""
        return replace(self, expert=replace(self.expert, **values))

    def without_desk(self) -> Job:
        """Return the job without what only the desk reads: paths, refresh with secrets, trackers."""
        job = self.with_data(path="", folder="", refresh="", secrets=())
        return replace(job, script=replace(job.script, root=""), track=())

    def with_defaults(self, keys: Mapping[str, Any]) -> Job:
        """Return the job with these values for keys, named with their tables, that were not given."""
        job = self
        for key, value in keys.items():
            table, _, name = key.rpartition(".")
            if key in self.given:
                continue
            changed = {table: replace(getattr(job, table), **{name: value})} if table else {name: value}
            job = replace(job, **changed)
        return job

    def with_own_files(self, homes: Mapping[str, OwnFile]) -> Job:
        """Return the job with these in place of its own files."""
        changed: dict[str, Any] = {table: home for table, home in homes.items() if table != "data"}
        own: Any = homes.get("data", self.data.own)
        data = replace(self.data, own=own)
        return replace(self, data=data, **changed)

    def to_dict(self) -> Tables:
        """Return the job as JSON values by table; `name` comes first in the tables of homes.

        `track` is left out: it is the desk's, and changes no run. So are unused tables: those of a model for
        a script, the script's for a model, and [agent] for a target that does not act.
        """
        left_out: tuple[str, ...] = NOT_OF_A_SCRIPT
        if not self.script.command:
            left_out = ("script",) if self.target.acts else ("script", "agent")
        if not self.search.over:
            left_out += ("search",)
        parts = {table: getattr(self, table) for table in TABLES if table not in left_out}
        tables: Tables = {"name": self.name}
        for table, part in parts.items():
            keys = part.to_keys() if isinstance(part, HomeSettings) else asdict(part)
            if table == "data":
                keys.pop("own")
                keys = {
                    key: keys[key] for key in keys if (key in DATA_OF_A_SCRIPT) == bool(self.script.command)
                }
            tables[table] = {
                key: list(value) if isinstance(value, tuple) else value for key, value in keys.items()
            }
        if self.data.own and "data" in tables and not self.script.command:
            tables["data"]["own"] = self.data.own.to_keys()
        return tables


def refuse_script(job: Job, verb: str) -> None:
    """Raise UsageError if a verb for models is given a script."""
    if job.script.command:
        do = "Run it with mayfly launch, or at this desk as it is."
        raise UsageError(f"{verb} takes no script", why="it is for models of Mayfly's training", do=do)
