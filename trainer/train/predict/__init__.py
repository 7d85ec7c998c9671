"""Forecasts of stored models."""
