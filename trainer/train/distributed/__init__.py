"""One model on all devices: torchrun starts a process for each, the ranks, which train it together by DDP.

    supervisor   in the training's own process: starts torchrun for each piece, hears its ranks, ends them
    torchrun     torch.distributed.run with a store on loopback; restarts its ranks when one dies
    rank         one process on one device: reads the source, then runs the same loop as a worker
    group        the process group: sums, broadcasts, gathers
    layout       DDP as a pack's layout: this rank's rows of every batch
    sharing      which rows and which parts of a validation each rank takes; pure functions
    agreement    the time that all ranks go by: rank 0's
    shards       checkpoints that all ranks write together

Every rank reads the same source, and draws the same order of batches from the seed. A rank's clock decides nothing: see
`agreement`. The result is one process's but for the order in which gradients are added up.
"""
