"""One supervisor and its workers: a process for each GPU, on a CPU one for each core.

`supervisor` starts them and hands out what `piece_queue` orders; `worker` trains packs; `parent` ends it with its parent.
Where it runs is decided by `devices`, `station` (threads, cores, memory) and `affinity`.
"""
