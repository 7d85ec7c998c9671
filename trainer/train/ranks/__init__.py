"""Train one model on all devices: torchrun starts a process for each, the ranks, which share batches by DDP
or FSDP2.

    supervisor   in the main process: starts torchrun for each piece, receives events of ranks
    torchrun     torch.distributed.run with a store on loopback; restarts the ranks when one dies
    rank         one process on one device: reads the source, then runs the same loop as a worker
    group        the process group: sums, broadcasts, gathers, and a clock that all ranks share
    layout       DDP and FSDP2 as a pack's layouts: this rank's rows of every batch, its part of the weights
    validation   which part of a validation each rank computes
    links        check of devices and links before the first step
    shards       checkpoints that all ranks write together

Every rank reads the same source and draws the same order of batches from the seed. Only rank 0's clock
decides anything. The result equals one process's, except for the order in which gradients
are added up.
"""
