"""Find the fastest settings of a job on this chip: `chosen` decides, `tune` runs the trial, `timing` times
one candidate.
"""
