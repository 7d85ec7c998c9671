"""Carry out what `runs.reconcile` decides, at the desk and in the functions."""
