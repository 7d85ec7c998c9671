"""One supervisor and its workers: one process per GPU, or per core of a CPU.

`supervisor` starts them and assigns pieces in the order of `piece_queue`; `worker` trains packs; `parent`
ends a process with its parent. `devices`, `station` (threads, cores, memory) and `affinity` place workers on
the machine.
"""
