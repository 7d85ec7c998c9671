"""Train every model of a job on this machine's devices. The main path: `__main__`, `workers/worker`, `loop`, `packs/pack`.

who and what   survey (the models of a job), task (one model's two ends), source and staging (a symbol's rows)
one training   prepare, loop, schedule, seeds, precision, cpu, checkpoint
how well       readers, evaluation, predict
packs/         models that one worker steps together: the interface, and each way to do it
workers/       the supervisor, its processes, and where they run
tuning/        the fastest way on this chip: chosen once, by a trial of a few seconds
observing/     events, TensorBoard, what the GPUs did, traces
smoke          the node's first look at a device
"""
