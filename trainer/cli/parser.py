"""Every verb and flag of the command line. argparse and nothing else: `--help` must answer at once.

What a verb does stands in `trainer/cli/<verb>.py`, imported after its arguments are parsed.
"""

from __future__ import annotations

import argparse

from trainer import __version__
from trainer.arguments import Parser

LAUNCH_EPILOG = """\
Settings are taken from the defaults, then the job file, then these flags, then --set, the later winning.
examples/crypto-lstm.toml shows the tables of a job and their keys; --set takes train.epochs=3, or epochs=3 where one
table has such a key. Region and credentials come from AWS's own variables
(AWS_REGION, AWS_PROFILE, ...); --rehearse needs neither: it runs the same on an embedded AWS of this machine.
"""


def build_parser(prog: str = "mayfly") -> Parser:
    """Return the parser of `mayfly`; with another prog, that of `python -m trainer.launch`, where the module is the verb."""
    if prog != "mayfly":
        parser = Parser(prog=prog, description="Train models on an ephemeral GPU machine.", epilog=LAUNCH_EPILOG)
        parser.set_defaults(verb="launch")
        _launch_flags(parser)
        return parser
    parser = Parser(prog=prog, description="Training on AWS GPUs that live only as long as the work.")
    parser.add_argument("--version", action="version", version=f"mayfly {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True, parser_class=Parser)

    launch = verbs.add_parser("launch", help="train models on an ephemeral GPU machine", epilog=LAUNCH_EPILOG)
    _launch_flags(launch)

    status = verbs.add_parser("status", help="show runs, and settle those that nobody watches")
    status.add_argument("run", nargs="?", metavar="RUN", help="one run; otherwise all that are open, and the last ones")
    _where_flags(status)

    logs = verbs.add_parser("logs", help="print a run's log, from S3")
    logs.add_argument("run", metavar="RUN", help="run id")
    logs.add_argument("-f", "--follow", action="store_true", help="go on printing until the run ends")
    logs.add_argument("--tail", type=int, default=0, metavar="N", help="the last N lines only")
    _where_flags(logs)

    stop = verbs.add_parser("stop", help="end a run: finished models are uploaded, then its machine is terminated")
    stop.add_argument("run", metavar="RUN", help="run id")
    _where_flags(stop)

    receipts = verbs.add_parser("receipts", help="list receipts, or print one")
    receipts.add_argument("run", nargs="?", metavar="RUN", help="run id; otherwise all")
    _where_flags(receipts)

    pull = verbs.add_parser("pull", help="download what a run made")
    pull.add_argument("run", metavar="RUN", help="run id")
    pull.add_argument("--out", default="", metavar="DIR", help="folder to write to (default: ./<run>)")
    _where_flags(pull)

    doctor = verbs.add_parser("doctor", help="check all that a run depends on, and say what to do")
    _where_flags(doctor)

    down = verbs.add_parser("down", help="take the stack away, all but its bucket; refuses while a run is open")
    down.add_argument("-y", "--yes", action="store_true", help="don't ask: passed on to pulumi destroy")
    down.add_argument("--stack", default="dev", metavar="NAME", help="Pulumi stack (default: dev)")
    down.add_argument("--json", action="store_true", help="print one JSON document on stdout")

    _models_verb(verbs)

    predict = verbs.add_parser("predict", help="what models forecast for a file or folder of candles, as one CSV")
    predict.add_argument(
        "models", nargs="*", metavar="MODEL", help=".safetensors files, folders of them, names or keys in the bucket"
    )
    predict.add_argument("--run", default="", metavar="RUN", help="every model of this run")
    predict.add_argument("--data", required=True, metavar="PATH", help="file or folder of candles, parquet or CSV")
    predict.add_argument("--model-file", metavar="FILE.py", help="the Python file of a model of your own")
    predict.add_argument("--symbols", metavar="A,B", help="symbols to predict (default: all that the models know)")
    predict.add_argument("--last", type=int, default=0, metavar="N", help="the last N bars of each symbol only")
    _where_flags(predict)

    # Its flags are those of trainer/train/__main__.py, which main.py calls.
    verbs.add_parser("train", add_help=False, help="train every model of a job on this machine, without any cloud")

    profiles = verbs.add_parser("profiles", help="what is known of each GPU, and which profile holds on this machine")
    profiles.add_argument("--json", action="store_true", help="print one JSON document on stdout")

    _measuring_verbs(verbs)

    rehearse = verbs.add_parser("rehearse", help="the embedded AWS: lend it to this shell, or end it")
    action = rehearse.add_mutually_exclusive_group(required=True)
    action.add_argument("--env", action="store_true", help='print variables for this shell: eval "$(mayfly rehearse --env)"')
    action.add_argument("--stop", action="store_true", help="end it, with everything that runs in it")
    rehearse.add_argument("--json", action="store_true", help="print one JSON document on stdout")
    return parser


def _models_verb(verbs: argparse._SubParsersAction[Parser]) -> None:
    models = verbs.add_parser("models", help="list models in the bucket, or download one")
    actions = models.add_subparsers(dest="action", metavar="ACTION", required=True, parser_class=Parser)
    listing = actions.add_parser("list", help="every model with its run, version and scores")
    pull = actions.add_parser("pull", help="download one model")
    pull.add_argument("model", metavar="MODEL", help="name or key of a model")
    pull.add_argument("--out", default="", metavar="DIR", help="folder to write to (default: the current one)")
    for parser in (listing, pull):
        _where_flags(parser)


def _measuring_verbs(verbs: argparse._SubParsersAction[Parser]) -> None:
    tune = verbs.add_parser("tune", help="measure how this machine trains a job's models fastest; its next runs do that")
    tune.add_argument("--job", metavar="FILE", help="job file (TOML)")
    tune.add_argument("--data", metavar="PATH", help="candles of the run that this is for (default: the job's)")
    tune.add_argument(
        "--seconds",
        type=float,
        metavar="N",
        help="time to measure, 60 at most (default: 20)",
    )
    bench = verbs.add_parser("bench", help="measure what a large model costs on this machine: chunks a second, memory, dollars")
    bench.add_argument("--price", type=float, metavar="USD", help="an hour of this GPU (default: AWS's cheapest; 0 on a CPU)")
    bench.add_argument("--bars", type=int, default=0, metavar="N", help="bars to train on (default: seven years of minutes)")
    bench.add_argument("--quick", action="store_true", help="fewer batches, less time for each")
    for parser in (tune, bench):
        parser.add_argument("--gpu-profile", metavar="NAME", help="see `mayfly profiles` (default: by the GPU that is there)")
        parser.add_argument(
            "--set", dest="settings", action="append", default=[], metavar="KEY=VALUE", help="any key of the job"
        )
        parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"), help="default: a GPU if there is one")
        parser.add_argument("--json", action="store_true", help="print one JSON document on stdout")


def _where_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--stack", default="dev", metavar="NAME", help="Pulumi stack (default: dev)")
    parser.add_argument("--rehearse", action="store_true", help="the embedded AWS of this machine instead of an account")
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout, and nothing else there")


def _launch_flags(parser: argparse.ArgumentParser) -> None:
    """Add the launch flags. None means: not given, so that the job file's value stands."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    job = parser.add_argument_group("the job")
    job.add_argument("--job", metavar="FILE", help="job file (TOML)")
    job.add_argument("--instance", action="append", metavar="TYPE", help="instance type; repeat it in order of preference")
    job.add_argument("--model", metavar="NAME", help="model, by its name in docs/models-and-targets.md, or FILE.py:CLASS")
    job.add_argument("--target", metavar="NAME", help="what is forecast, named likewise (default: by model)")
    job.add_argument("--symbols", metavar="A,B", help="symbols to train (default: all that the data holds)")
    job.add_argument("--timeframe", metavar="TF", help="such as 1m (default: the only one there is)")
    job.add_argument(
        "--data", metavar="PATH", help="file or folder of candles, uploaded to the data set (default: what is there)"
    )
    job.add_argument("--epochs", metavar="N", help="passes over the data, at most (default: 15)")
    job.add_argument("--gpu-profile", metavar="NAME", help="see `mayfly profiles` (default: by the instance's GPU)")
    market = job.add_mutually_exclusive_group()
    market.add_argument("--spot", dest="market", action="store_const", const="spot", help="buy spot capacity")
    market.add_argument("--on-demand", dest="market", action="store_const", const="on_demand", help="buy on demand (default)")
    job.add_argument("--budget", metavar="USD", help="dollars that the run may cost at most; it becomes the deadline")
    job.add_argument(
        "--set",
        dest="settings",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="any other key of the job, such as max_duration=6h",
    )
    how = parser.add_argument_group("how to launch")
    how.add_argument("--detach", action="store_true", help="return as soon as the machine is started")
    how.add_argument("--dry-run", action="store_true", help="print the plan and launch nothing")
    how.add_argument("-y", "--yes", action="store_true", help="don't ask before spending money")
    _where_flags(parser)
