"""The report of a run: one HTML page beside its receipt, which `control.report` makes and stores."""
