"""A user's own model or target: checked and tried in a child process."""
