"""Access to AWS: credentials and clients, error codes, the stack's outputs, schedules, single files."""
