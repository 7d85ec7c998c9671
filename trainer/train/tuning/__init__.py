"""The fastest way to train a job on this chip. Read `chosen` first: it decides, once, before any worker starts.

`tune` times the candidates by `timing`, in a process of its own (`tuner_process`); `placement` holds the answer to what fits;
`bench` prints the cost of a model that reads chunks, by batch.
"""
