"""The plan of a job's data: the bars of each symbol that have a label, split into train, validation and test.
Numpy, no torch.

`job_plan` plans all symbols of a job: each by itself (`symbol_plan`), at one split (`one_split`), or as a
panel (`panel_plan`). Each series' bars are laid out by `series_plan`, which knows no job. `document` is the
result as plan.json, from which workers derive their windows. `check` is the data check at the desk.
"""
