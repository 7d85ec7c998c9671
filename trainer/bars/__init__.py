"""The plan of a job's data: the bars of each symbol that have a label, split into train, validation and test.
Numpy, no torch.

`symbol_plan` plans one symbol from its bars, the model's reach and the target's labels; `panel_plan` plans a
panel, `one_split` one split for several series. `job_plan` plans all symbols of a job, and `document` is the
result as plan.json, from which workers derive their windows. `check` is the data check at the desk.
"""
