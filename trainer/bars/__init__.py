"""The plan of a job's data: the bars of each symbol that have a label, split into train, validation and test.
Numpy, no torch.

`plans` plans one symbol from its bars, the model's reach and the target's labels; `panel` plans a panel,
`together` one split for several series. `planning` plans all symbols of a job, and `document` is the result
as plan.json, from which workers derive their windows. `check` is the data check at the desk.
"""
