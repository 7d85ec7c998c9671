"""Ended runs in the user's tracker, MLflow or Weights & Biases: from the desk alone, and only where it is
asked for.

`reading` says what a tracker gets, `track` has a child process write it, `to_mlflow` and `to_wandb` are the
two trackers. TensorBoard's files are `trainer/train/observing/tensorboard.py`'s.
"""
