"""`mayfly stop RUN`: end a run. Finished models are uploaded, then the machine is terminated and its end
observed.
"""

from __future__ import annotations

import argparse

from trainer.attach.keys import forget_ended
from trainer.aws.stack import read_stack
from trainer.cli.connect import connected, named_run
from trainer.cli.output import say_json
from trainer.cli.terminal import Console, show
from trainer.cli.views.receipt import receipt_view
from trainer.cli.views.watch import Watch
from trainer.control.cloud import AwsCloud
from trainer.control.drive import drive
from trainer.control.stop import StopSignal, Wish, request_stop
from trainer.runs.index import note_shown
from trainer.runs.outcome import EXIT_CODES
from trainer.runs.stored_receipt import read_receipt


def run(arguments: argparse.Namespace) -> int:
    """Ask a run to stop and follow it to its receipt. Returns 0 once its machine has ended, 110 if that can't
    be confirmed.
    """
    console = Console(plain=arguments.json)
    with connected(rehearse=arguments.rehearse, program=False, local=arguments.local) as access:
        outputs = read_stack(access, stack=arguments.stack)
        cloud = AwsCloud(access, outputs)
        record = request_stop(cloud, named_run(cloud.objects, arguments.run))
        if record.state == "closed":
            console.line(f"{record.run_id} has ended already: {record.outcome}")
        with StopSignal(wish=Wish.END).installed() as stop:
            receipt = read_receipt(cloud.objects, record.run_id) if record.state == "closed" else None
            if receipt is None:
                watch = Watch(console, stop)
                receipt = drive(
                    cloud,
                    record.run_id,
                    known=record,
                    poll_seconds=access.place.poll_seconds,
                    on_event=watch.on_event,
                    stop=stop,
                )
        forget_ended(cloud.objects)
        console.close()
        assert receipt is not None  # only a question lets a user leave
        view = receipt_view(receipt, outputs.experiment_days, checkpoint_days=outputs.checkpoint_days)
        say_json(receipt) if arguments.json else show(view)
        note_shown(cloud.objects, receipt)
    return EXIT_CODES["unconfirmed"] if receipt["state"] == "unconfirmed" else 0
