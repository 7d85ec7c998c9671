"""Train every model of a job on this machine's devices. Read `__main__`, `workers`, `worker`, `loop`, `pack`, in this order.

who trains what   survey (the models of a job), queue, workers (the supervisor), worker, parent
where             devices, station (threads, cores, memory), affinity, cpu, staging and source (a symbol's rows)
how               loop, schedule, pack (the interface; plain modules), stacked (GPUs), chunks (TCN), precision, seeds
how fast          chosen (decided once), strategy, placement, tune, tuner, timing, bench
how well          task (its two ends), score, evaluation, volatility, predict
kept              checkpoint, events, observe, tensorboard, gpu_watch, trace; smoke is the node's first look
"""
