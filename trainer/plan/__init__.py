"""The plan of a symbol's training: which bars have a label, and which of them train, validate and test. Numpy, no torch.

Joins data, a model's reach and a target's labels: `plans`. `check` is the data check at the desk.
"""
