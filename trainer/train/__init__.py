"""Train every model of a job on this machine's devices. The main path: `__main__`, `workers/worker`, `loop`,
`packs/pack`.

models         survey (the pieces of a job), piece (before and after one training), source and staging (a
symbol's rows) training       prepare, loop, schedule, seeds, precision, cpu, checkpoint scores
readers, evaluation, predict packs/         models that one worker steps together: the interface and the
strategies workers/       the supervisor, its processes, their devices tuning/        the fastest settings on
this chip, chosen once by a trial of a few seconds observing/     events, TensorBoard, GPU use, traces smoke
the node's test of a device
"""
