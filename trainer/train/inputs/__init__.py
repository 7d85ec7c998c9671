"""Bars to the tensors of a training."""
