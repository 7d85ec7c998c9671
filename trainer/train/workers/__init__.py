"""One supervisor and its workers: one process per GPU, or per core of a CPU.

`supervisor` starts them and hands out what `piece_queue` orders; `worker` trains packs; `parent` ends it with its parent.
`devices`, `station` (threads, cores, memory) and `affinity` place them.
"""
