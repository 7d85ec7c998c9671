"""Models that one worker steps together: `pack` has the interface and plain modules, `stacked` the strategies
for GPUs, `chunks` models that read chunks.

`strategy` chooses a strategy and forms the pack. A model's result does not depend on its pack. To add a
strategy, write a module here and add a line to `strategy`.
"""
