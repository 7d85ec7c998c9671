"""Training of one model on several devices: a process (rank) for each."""
