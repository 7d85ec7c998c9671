"""A user's own model, target or environment: checked and tried in a child process."""
