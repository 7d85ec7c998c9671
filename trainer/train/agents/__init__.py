"""Agents: models whose outputs act, and how they learn from what that brings.

`rollout` acts in accounts and adds up their rewards, `ppo` is the learner; both are pure functions of
tensors. `trainer.train.packs.agents` trains the agents of a worker by them. `lanes` steps environments of the
user's own, `episodes` and `policies` evaluate in them; `trainer.train.packs.environments` trains there.
"""
