"""The plan of a job's data: the bars of each symbol that have a label, split into train, validation and test. Numpy, no torch.

`plans` joins bars, a model's reach and a target's labels for one symbol. `planning` does it once for all symbols of a job, and
`document` is the result as plan.json, from which workers derive their windows. `check` is the data check at the desk.
"""
