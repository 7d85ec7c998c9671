"""A run's life: record, observation, decisions, outcome, receipt."""
