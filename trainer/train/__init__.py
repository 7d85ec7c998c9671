"""Train every model of a job on this machine's devices. The main path: `__main__`, `workers/worker`, `loop`,
`packs/pack`.

    inputs/        the pieces of a job, and the rows of a symbol
    piece          before and after one training
    loop           steps, epochs, validation; with schedule, seeds, precision and cpu
    checkpoint     with checkpoint_files: a training's state on disk
    packs/         models that one worker steps together: the interface and the strategies
    workers/       the supervisor, its processes, their devices
    ranks/         one model on all devices, by torchrun
    tuning/        the fastest settings on this chip, chosen once by a trial of a few seconds
    evaluate/      scores and cards
    predict/       predictions of stored models
    own/           a user's own model, target or environment, checked in a child process
    observing/     events, TensorBoard, GPU use, traces
    smoke          the node's test of a device
"""
