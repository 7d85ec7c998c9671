"""Scheduled runs: when (the stack's settings), what (a published retrain), and what came of each scheduled time."""
