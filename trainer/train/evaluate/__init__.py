"""Scores of trained models, and their cards."""
