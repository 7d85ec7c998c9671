"""PPO of one agent in plain loops, bar by bar in each account: what the program of tensors has to equal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from trainer.job.job import Job
from trainer.models.layers import numbers_of
from trainer.targets.position_policy import mean_and_log_deviation, value
from trainer.train.packs.adamw import AdamW
from trainer.train.packs.agents import uniform
from trainer.train.packs.pack import Member, new_model
from trainer.train.predict.readers import INPUT_LIMIT
from trainer.train.seeds import dropout_keys


class PlainAgent:
    """One agent; `step` takes the windows of a rollout as a pack does, and returns the loss."""

    def __init__(self, member: Member, job: Job) -> None:
        self.member, self.job, self.target = member, job, job.target
        self.model = new_model(member, job)
        rate, decay = job.train.learning_rate, job.train.weight_decay
        self.optimizer = AdamW(self.model.parameters(), rate=rate, weight_decay=decay)
        flat: Any = 0.0 if job.target.is_continuous else job.target.flat
        self.flat, self.taken = flat, 0
        self.accounts = [(flat, -1)] * job.agent.lanes
        returns = member.labels_TK[:, 0].double()
        returns = returns[~returns.isnan()]
        horizon = min(job.agent.episode, 1 / (1 - job.agent.discount))
        self.unit = float((horizon * ((returns - returns.mean()) ** 2).mean()).sqrt())
        self.rewards: list[list[float]] = []  # of the last rollout, by lane, in log growth
        self.shares: list[list[float]] = []

    def step(self, starts_N2: torch.Tensor) -> float:
        job, agent = self.job, self.job.agent
        keys = dropout_keys(
            seed=self.member.seed, model=self.member.draws_as, steps=[self.taken], layers=1 + agent.updates,
            purpose="agent",
        )[0]  # fmt: skip
        self.taken += 1
        bars = job.reads_of_step
        lanes = starts_N2.view(agent.lanes, -1, 2).tolist()
        draws = uniform(keys[:1], bars)[0].view(agent.lanes, -1).tolist()
        experience: list[dict[str, Any]] = []
        self.rewards, self.shares = [], []
        for lane, (windows, numbers) in enumerate(zip(lanes, draws, strict=True)):
            experience += self._live(lane, windows, numbers)
        advantage = torch.tensor([one["advantage"] for one in experience], dtype=torch.float64)
        scaled = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        for one, normalized in zip(experience, scaled.tolist(), strict=True):
            one["normalized"] = normalized
        for key in keys[1:]:
            order = numbers_of(key[None], bars)[0].argsort(stable=True).tolist()
            for first in range(0, bars, job.train.batch):
                self._update([experience[bar] for bar in order[first : first + job.train.batch]])
        return -10_000 * sum(map(sum, self.rewards)) / bars

    def _live(
        self, lane: int, windows: Sequence[list[int]], numbers: Sequence[float]
    ) -> list[dict[str, Any]]:
        """Trade one account over a rollout; return what each bar teaches."""
        target, agent = self.target, self.job.agent
        held, expected = self.accounts[lane]
        if expected != windows[0][0]:
            held = self.flat
        made: list[dict[str, Any]] = []
        self.rewards.append([])
        self.shares.append([])
        for (first, following), number in zip(windows, numbers, strict=True):
            outputs = self._outputs(first).detach()
            action, share = self._chosen(outputs, held, number)
            before = held if target.is_continuous else target.positions[held]
            log_return = float(self.member.labels_TK[first + self.job.model.bars_seen - 1, 0])
            worth = 1 + share * math.expm1(log_return)
            growth = math.log(1 - target.cost * abs(share - before)) + math.log(max(worth, 1e-3))
            is_ruin, is_hole = worth <= 1e-3, following != first + 1
            kept: Any = (
                min(max(action, target.positions[0]), target.positions[-1])
                if target.is_continuous
                else action
            )
            if is_hole and not is_ruin:
                growth += math.log(1 - target.cost * abs(share))
            made.append(
                {
                    "first": first,
                    "next": following,
                    "held": held,
                    "action": action,
                    "log_chance": float(self._judged(outputs, held, action)[0]),
                    "value": float(self._value(outputs, held)),
                    "reward": growth / self.unit,
                    "ruin": is_ruin,
                    "after": self.flat if is_hole else kept,
                }
            )
            self.rewards[-1].append(growth)
            self.shares[-1].append(share)
            held = self.flat if is_ruin or is_hole else kept
            place = len(made)
            if place < len(windows) and windows[place][0] != following:
                held = self.flat  # another episode
        self.accounts[lane] = (held, windows[-1][1])
        advantage = 0.0
        for place in reversed(range(len(made))):
            one = made[place]
            ends = place + 1 == len(made) or made[place + 1]["first"] != one["next"]
            then = float(self._value(self._outputs(one["next"]).detach(), one["after"]))
            error = one["reward"] + (0.0 if one["ruin"] else agent.discount * then) - one["value"]
            advantage = error + (0.0 if one["ruin"] or ends else agent.discount * agent.trace * advantage)
            one["advantage"], one["target"] = advantage, advantage + one["value"]
        return made

    def _update(self, batch: Sequence[dict[str, Any]]) -> None:
        agent, total = self.job.agent, torch.zeros((), dtype=torch.float64)
        for one in batch:
            outputs = self._outputs(one["first"])
            log_chance, entropy = self._judged(outputs, one["held"], one["action"])
            ratio = (log_chance - one["log_chance"]).exp()
            clipped = ratio.clamp(1 - agent.clip, 1 + agent.clip)
            gain = torch.min(ratio * one["normalized"], clipped * one["normalized"])
            error = (self._value(outputs, one["held"]) - one["target"]) ** 2
            total = total + agent.value_weight * error - gain - agent.entropy * entropy
        self.optimizer.zero_grad()
        (total / len(batch)).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.job.train.clip_norm)
        self.optimizer.step()

    def _outputs(self, first: int) -> torch.Tensor:
        member = self.member
        rows = member.rows_TF[first : first + self.job.model.bars_seen]
        scaled = ((rows - member.mean_F) / member.std_F).clamp(-INPUT_LIMIT, INPUT_LIMIT)
        return self.model(scaled[:, None])[0]

    def _chosen(self, outputs: torch.Tensor, held: Any, number: float) -> tuple[Any, float]:
        if self.target.is_continuous:
            mean, log_deviation = mean_and_log_deviation(
                self.target, outputs, torch.tensor(held, dtype=torch.float64)
            )
            normal = float(torch.special.ndtri(torch.tensor(number, dtype=torch.float64)))
            action = float(mean) + math.exp(float(log_deviation)) * normal
            return action, min(max(action, self.target.positions[0]), self.target.positions[-1])
        chances = self._chances(outputs, held).exp().tolist()
        action, reached = 0, chances[0]
        while action < len(chances) - 1 and reached <= number:
            action += 1
            reached += chances[action]
        return action, self.target.positions[action]

    def _chances(self, outputs: torch.Tensor, held: int) -> torch.Tensor:
        count = len(self.target.positions)
        return torch.log_softmax(outputs[held * count : (held + 1) * count], dim=0)

    def _judged(self, outputs: torch.Tensor, held: Any, action: Any) -> tuple[torch.Tensor, torch.Tensor]:
        if self.target.is_continuous:
            mean, log_deviation = mean_and_log_deviation(
                self.target, outputs, torch.tensor(held, dtype=torch.float64)
            )
            normal = torch.distributions.Normal(mean, log_deviation.exp())
            return normal.log_prob(torch.tensor(action, dtype=torch.float64)), normal.entropy()
        spread = torch.distributions.Categorical(logits=self._chances(outputs, held))
        return spread.log_prob(torch.tensor(action)), spread.entropy()

    def _value(self, outputs: torch.Tensor, held: Any) -> torch.Tensor:
        if self.target.is_continuous:
            return value(self.target, outputs, torch.tensor(held, dtype=torch.float64))
        return outputs[len(self.target.positions) ** 2 + held]
