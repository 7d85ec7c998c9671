"""A user's own model, target, environment or features: checked and tried in a child process."""
