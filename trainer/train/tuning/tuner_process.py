"""The tuner in a process of its own: a CUDA context, its memory and a crash stay there. It has so long and no longer."""

from __future__ import annotations

import multiprocessing
import signal
import sys
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection

from trainer.errors import TrainerError
from trainer.job import Job
from trainer.train.tuning.timing import Timing
from trainer.train.tuning.tune import remember, tune_here
from trainer.train.workers.parent import end_with_the_parent

MEASURING_SHARE = 0.9  # of what is left once torch is loaded: the last candidate may take a little longer


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """What the tuner found, the chosen first; or in `failure` why there is nothing."""

    timings: tuple[Timing, ...] = ()
    failure: str = ""


def run_tuner(job: Job, *, device: str, seconds: float, batch_limit: int) -> Tuning:
    """Tune in a child that is ended when its time is up and keeps its answer; what goes wrong there is told, never raised."""
    context = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
    ours, theirs = context.Pipe(duplex=False)
    arguments = (theirs, job, device, time.time() + seconds, batch_limit)
    process = context.Process(target=tune_and_tell, args=arguments, name="tuner", daemon=True)
    process.start()
    theirs.close()
    try:
        if not ours.poll(seconds):
            return Tuning(failure=f"it was not done after {seconds:.0f} s")
        found = ours.recv()
        return found if isinstance(found, Tuning) else Tuning(failure="it said something else")
    except EOFError:
        process.join()
        return Tuning(failure=f"its process ended with exit code {process.exitcode}")
    finally:
        process.kill()
        process.join()
        ours.close()


def tune_and_tell(pipe: Connection, job: Job, device: str, ends_at: float, batch_limit: int) -> None:
    """Tune until `ends_at` (seconds of the epoch), keep the answer on this machine, and send it."""
    end_with_the_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole terminal group: the supervisor decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    try:
        left = max(0.0, ends_at - time.time())
        choice, timings = tune_here(job, device=device, seconds=left * MEASURING_SHARE, batch_limit=batch_limit, say=say)
    except TrainerError as error:
        pipe.send(Tuning(failure=str(error)))
        return
    try:
        remember(choice, job, timings[0])
    except (OSError, TrainerError) as error:  # a full disk: this run knows, the next one will find out again
        say(f"what was tuned can't be kept: {error}")
    pipe.send(Tuning(timings=tuple(timings)))
