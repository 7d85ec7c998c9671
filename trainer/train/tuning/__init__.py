"""The fastest way to train a job on this chip: `chosen` decides, `tune` runs the trial, `timing` times one way."""
