"""Models that one worker steps together: `pack` is the interface and plain modules, `stacked` the ways of GPUs,
`chunks` models that read chunks.

`strategy` says which there are and forms one. A model's result does not depend on its pack. A further way (one kernel with the
recurrent weights resident on the chip) is a module here and a line in `strategy`.
"""
