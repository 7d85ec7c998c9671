"""Every verb and flag of the command line. argparse and nothing else: `--help` must answer at once.

A verb is implemented in `trainer/cli/<verb>.py`, imported after its arguments are parsed; an action may set
another `verb`.
"""

from __future__ import annotations

import argparse

from trainer import __version__
from trainer.base.arguments import Parser

TYPE_CHECKING = False  # typing's own constant, without its import
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

RUN = "run id, a part of one, or last"
LAUNCH_EPILOG = """\
Settings: defaults, then the job file, then these flags, then --set; later ones win.
examples/crypto-lstm.toml explains every key of a job; --set names it with its table,
such as train.epochs=3. Region and credentials come from AWS's own variables
(AWS_REGION, AWS_PROFILE, ...); --rehearse needs neither.
"""


def build_parser(prog: str = "mayfly") -> Parser:
    """Return the parser of `mayfly`; with another prog, that of `python -m trainer.launch`, where the module
    is the verb.
    """
    if prog != "mayfly":
        description = "Train models on an ephemeral GPU machine."
        parser = Parser(prog=prog, description=description, flags=_launch_flags)
        parser.set_defaults(verb="launch")
        return parser
    parser = Parser(prog=prog, description="Train models on AWS GPUs that exist only for the run.")
    parser.add_argument("--version", action="version", version=f"mayfly {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True, parser_class=Parser)
    for verb, (words, flags) in VERBS.items():
        verbs.add_parser(verb, help=words, flags=flags, add_help=flags is not None)
    return parser


def _status_flags(parser: Parser) -> None:
    parser.add_argument("run", nargs="?", metavar="RUN", help=f"{RUN} (default: open runs and the last ones)")
    parser.add_argument(
        "-f", "--follow", action="store_true", help="show one run's progress until it ends, as a launch does"
    )
    parser.add_argument(
        "--events", action="store_true", help="show all that happened to one run, with the reasons"
    )
    _where_flags(parser, local=True)


def _logs_flags(parser: Parser) -> None:
    parser.add_argument("run", metavar="RUN", help=RUN)
    parser.add_argument("-f", "--follow", action="store_true", help="keep printing until the run ends")
    parser.add_argument(
        "--tail", type=int, default=0, metavar="N", help="print the last N lines only, or epochs (default: 3)"
    )
    parser.add_argument(
        "--metrics",
        action="store_true",
        help="print the losses of each model's last epochs instead of the log",
    )
    _where_flags(parser, local=True)


def _attach_flags(parser: Parser) -> None:
    parser.usage = "%(prog)s [-h] [--forward LOCAL:REMOTE] [--stack NAME] [--rehearse] RUN [-- COMMAND ...]"
    parser.add_argument("run", metavar="RUN", help=f"{RUN}; after --, a command (default: a shell)")
    parser.add_argument(
        "--forward",
        action="append",
        default=[],
        metavar="LOCAL:REMOTE",
        help="forward a local port to a port of the machine",
    )
    _where_flags(parser, json=False)


def _stop_flags(parser: Parser) -> None:
    parser.add_argument("run", metavar="RUN", help=RUN)
    _where_flags(parser, local=True)


def _receipts_flags(parser: Parser) -> None:
    parser.add_argument("run", nargs="?", metavar="RUN", help=f"{RUN} (default: all)")
    parser.add_argument(
        "--by", choices=("month", "job", "symbol"), default="", help="sum time and dollars of all runs"
    )
    _where_flags(parser, local=True)


def _pull_flags(parser: Parser) -> None:
    parser.add_argument("run", metavar="RUN", help=RUN)
    parser.add_argument(
        "--out", default="", metavar="DIR", help="folder (default: ./<run>, or models/<run> in MAYFLY_LOCAL)"
    )
    parser.add_argument(
        "--live", action="store_true", help="continue until the run ends: models, log and curves"
    )
    _where_flags(parser, local=True)


def _backup_flags(parser: Parser) -> None:
    parser.add_argument(
        "folder", nargs="?", default="", metavar="FOLDER", help="folder (default: MAYFLY_LOCAL)"
    )
    parser.add_argument(
        "--restore", action="store_true", help="download missing files, checked by version and hash"
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="with --restore: also replace files that differ"
    )
    _where_flags(parser)


def _doctor_flags(parser: Parser) -> None:
    parser.add_argument(
        "--fix", action="store_true", help="delete volumes, interfaces and schedules that ended runs left"
    )
    parser.add_argument(
        "--sweep",
        action="store_true",
        help="end machines past their deadline, or silent, as the sweeper does",
    )
    parser.add_argument("--dry-run", action="store_true", help="say what --sweep would end, and end nothing")
    parser.add_argument("-y", "--yes", action="store_true", help="don't ask before --fix or --sweep")
    _where_flags(parser)


def _down_flags(parser: Parser) -> None:
    parser.add_argument("-y", "--yes", action="store_true", help="don't ask (passed on to pulumi destroy)")
    _stack_flag(parser)
    _json_flag(parser)


def _predict_flags(parser: Parser) -> None:
    parser.add_argument(
        "models",
        nargs="*",
        metavar="MODEL",
        help=".safetensors files, folders of them, names or keys in the bucket",
    )
    parser.add_argument("--run", default="", metavar="RUN", help=f"all models of one run: {RUN}")
    parser.add_argument(
        "--data", required=True, metavar="PATH", help="file or folder of candles, parquet or CSV"
    )
    parser.add_argument("--model-file", metavar="FILE.py", help="the Python file of a model of your own")
    parser.add_argument("--symbols", metavar="A,B", help="symbols to predict (default: all of the models)")
    parser.add_argument("--last", type=int, metavar="N", help="predict only the last N bars of each symbol")
    _where_flags(parser, local=True)


def _rehearse_flags(parser: Parser) -> None:
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument(
        "--env", action="store_true", help='print variables for this shell: eval "$(mayfly rehearse --env)"'
    )
    action.add_argument(
        "--stop", action="store_true", help="end the embedded AWS and everything that runs in it"
    )
    action.add_argument(
        "--settings",
        metavar="FILE",
        help="give its stack the settings of this file, such as retrains: docs/runs.md",
    )
    _json_flag(parser)


def _agent_flags(parser: Parser) -> None:
    parser.add_argument(
        "--here",
        action="store_true",
        required=True,
        help="run here; the deadline ends the run, not the machine",
    )
    _job_flag(parser)
    parser.add_argument(
        "--script", metavar="FILE", help="your own training script, unchanged: docs/scripts-and-machines.md"
    )
    parser.add_argument("--data", metavar="PATH", help="candles, or a script's folder")
    parser.add_argument("--max-duration", metavar="TIME", help="longest run: 90m, 6h (default: 12h)")
    _set_flag(parser)
    parser.add_argument(
        "--python",
        default="",
        metavar="FILE",
        help="Python whose packages a script uses (default: Mayfly's own)",
    )
    parser.add_argument("--detach", action="store_true", help="return as soon as the agent is started")
    others = ("instance", "model", "target", "symbols", "timeframe", "market", "epochs", "budget")
    parser.set_defaults(**dict.fromkeys(others))
    _where_flags(parser, local=True)


def _models_flags(models: Parser) -> None:
    actions = models.add_subparsers(dest="action", metavar="ACTION", required=True, parser_class=Parser)
    listing = actions.add_parser("list", help="list every model with its run, version and scores")
    pull = actions.add_parser("pull", help="download one model")
    pull.add_argument("model", metavar="MODEL", help="name, RUN/NAME or key of a model")
    pull.add_argument(
        "--out", default="", metavar="DIR", help="folder to write to (default: the current one)"
    )
    production = actions.add_parser("production", help="list production models, or the versions of one")
    production.add_argument("model", nargs="?", default="", metavar="NAME", help="GROUP/NAME, as listed")
    promote = actions.add_parser(
        "promote", help="put a model of an ended run in production, whatever its scores"
    )
    promote.add_argument("model", metavar="MODEL", help="name, RUN/NAME or key of a model")
    promote.add_argument(
        "--group", default="", metavar="GROUP", help="production group (default: the run's data set)"
    )
    rollback = actions.add_parser("rollback", help="replace a production model by an older version")
    rollback.add_argument("model", metavar="NAME", help="GROUP/NAME, as listed")
    rollback.add_argument(
        "--version",
        default="",
        metavar="ID",
        help="version to restore (default: the newest with other bytes)",
    )
    compare = actions.add_parser("compare", help="compare models, or all of several runs, on one test span")
    compare.add_argument("models", nargs="+", metavar="RUN|MODEL", help="the first is the reference")
    for parser in (listing, pull, production, promote, rollback, compare):
        _where_flags(parser, local=True)


def _retrains_flags(retrains: Parser) -> None:
    actions = retrains.add_subparsers(dest="action", metavar="ACTION", required=True, parser_class=Parser)
    publish = actions.add_parser(
        "publish", help="check a job as a launch would, and publish it with this code"
    )
    publish.add_argument("name", metavar="NAME", help="a retrain of the stack's setting `retrains`")
    _job_flag(publish, required=True)
    _set_flag(publish)
    listing = actions.add_parser(
        "list", help="list the stack's retrains: their next times, their jobs, their last results"
    )
    preview = actions.add_parser(
        "preview", help="show the next three times and the plan with the current data"
    )
    run = actions.add_parser("run", help="run it now, by the control function")
    pause = actions.add_parser("pause", help="skip scheduled times until it is resumed")
    pause.add_argument("--off", action="store_true", help="resume")
    history = actions.add_parser("history", help="list the result of each scheduled time")
    for parser in (preview, run, pause, history):
        parser.add_argument("name", metavar="NAME", help="name of a retrain")
    for parser in (publish, listing, preview, run, pause, history):
        _where_flags(parser)


def _profiles_flags(profiles: Parser) -> None:
    profiles.set_defaults(json=False, job=None)
    actions = profiles.add_subparsers(dest="action", metavar="ACTION", parser_class=Parser)
    listing = actions.add_parser(
        "list", help="list GPU profiles and the one that applies on this machine (default)"
    )
    tune = actions.add_parser(
        "tune", help="measure this machine's fastest settings for a job's models; its next runs use them"
    )
    _job_flag(tune)
    tune.add_argument("--data", metavar="PATH", help="candles of the run to tune for (default: the job's)")
    tune.add_argument(
        "--seconds",
        type=float,
        metavar="N",
        help="time to measure, 60 at most (default: 20)",
    )
    bench = actions.add_parser(
        "bench", help="measure a large model on this machine: chunks per second, memory, dollars"
    )
    bench.add_argument(
        "--price",
        type=float,
        metavar="USD",
        help="price of this GPU per hour (default: AWS's cheapest; 0 on a CPU)",
    )
    bench.add_argument(
        "--bars", type=int, default=0, metavar="N", help="bars to train on (default: seven years of minutes)"
    )
    bench.add_argument("--quick", action="store_true", help="measure fewer batches, and each for less time")
    for parser in (tune, bench):
        parser.add_argument(
            "--gpu-profile", metavar="NAME", help="see `mayfly profiles` (default: that of the GPU found)"
        )
        _set_flag(parser)
        parser.add_argument(
            "--device", default="auto", choices=("auto", "cpu", "cuda"), help="default: a GPU if there is one"
        )
    tune.set_defaults(verb="tune")  # modules of their own
    bench.set_defaults(verb="bench")
    for parser in (profiles, listing):
        of_job = "print batch, models at a time and time of a job on each, hourly and daily"
        parser.add_argument("--job", metavar="FILE", default=argparse.SUPPRESS, help=of_job)
    for parser in (profiles, listing, tune, bench):
        _json_flag(parser, default=argparse.SUPPRESS)  # either side of the action


def _where_flags(parser: argparse.ArgumentParser, *, json: bool = True, local: bool = False) -> None:
    _stack_flag(parser)
    parser.add_argument(
        "--rehearse",
        action="store_true",
        help="use the embedded AWS of this machine instead of an account (default: MAYFLY_REHEARSE=1)",
    )
    if local:
        help_text = "use a folder instead of a bucket, without AWS (default: MAYFLY_LOCAL)"
        parser.add_argument("--local", nargs="?", const="", metavar="FOLDER", help=help_text)
    if json:
        _json_flag(parser)


def _stack_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--stack", default="dev", metavar="NAME", help="Pulumi stack (default: dev)")


def _json_flag(parser: argparse._ActionsContainer, default: Any = False) -> None:
    help_text = "print one JSON document on stdout"
    parser.add_argument("--json", action="store_true", default=default, help=help_text)


def _job_flag(parser: argparse._ActionsContainer, *, required: bool = False) -> None:
    parser.add_argument("--job", required=required, metavar="FILE", help="job file (TOML)")


def _set_flag(parser: argparse._ActionsContainer) -> None:
    help_text = "any other key of the job"
    parser.add_argument(
        "--set", dest="settings", action="append", default=[], metavar="KEY=VALUE", help=help_text
    )


def _work_flags(
    job: argparse._ActionsContainer, *, symbols: str, data: str, market: str = "buy on demand (default)"
) -> None:
    """Add the flags of a job. None means not given."""
    _job_flag(job)
    job.add_argument(
        "--script", metavar="FILE", help="your own training script, unchanged: docs/scripts-and-machines.md"
    )
    job.add_argument(
        "--instance", action="append", metavar="TYPE", help="instance type; repeat it in order of preference"
    )
    job.add_argument("--model", metavar="NAME", help="model from docs/models.md, or FILE.py:CLASS")
    job.add_argument(
        "--target", metavar="NAME", help="target from the same page, or FILE.py:CLASS (default: by model)"
    )
    job.add_argument("--symbols", metavar="A,B", help=symbols)
    job.add_argument(
        "--timeframe", metavar="TF", help="such as 1m (default: that of the data, if there is only one)"
    )
    job.add_argument(
        "--data",
        metavar="PATH",
        help=data,
    )
    job.add_argument("--epochs", metavar="N", help="maximum passes over the data (default: 15)")
    job.add_argument(
        "--spot",
        dest="market",
        action="append_const",
        const="spot",
        help="buy spot capacity; with --on-demand after it, on demand where spot is full",
    )
    job.add_argument("--on-demand", dest="market", action="append_const", const="on_demand", help=market)
    job.add_argument("--budget", metavar="USD", help="maximum cost of the run in dollars; sets its deadline")
    job.add_argument(
        "--max-duration", metavar="TIME", help="longest run: 90m, 6h (default: by the plan, 30m to 12h)"
    )
    _set_flag(job)


def _plan_flags(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "Without --stack it needs no account, stack or network, and its prices are dated lists."
    job = parser.add_argument_group("the job")
    _work_flags(
        job,
        symbols="symbols, or how many: 500 (default: all of the data)",
        data="candles to count (default: the job's)",
        market="plan for on demand alone (default: both markets)",
    )
    job.add_argument(
        "--bars",
        type=int,
        metavar="N",
        help="bars of each symbol, instead of the data's (3700000: seven years of minutes)",
    )
    choice = parser.add_argument_group("the choice")
    choice.add_argument(
        "--objective",
        choices=("cost", "time", "balanced"),
        default="balanced",
        help="what the recommended machine makes small; balanced: dollars x hours (default)",
    )
    choice.add_argument("--deadline", metavar="TIME", help="be done within 30m, in nine of ten runs")
    choice.add_argument(
        "--desk",
        action="append",
        default=[],
        metavar="PROFILE=USD",
        help="your own GPU and the dollars of an hour of it: rtx_4090=0.12; repeat it",
    )
    choice.add_argument(
        "--stack", metavar="NAME", help="ask the account of this stack for offers and prices (default: lists)"
    )
    choice.add_argument(
        "--calibration",
        type=int,
        metavar="N",
        help="print how far the plans of the stack's last N runs were off, instead",
    )
    form = choice.add_mutually_exclusive_group()
    form.add_argument("--csv", action="store_true", help="print every row as CSV")
    _json_flag(form)


def _launch_flags(parser: argparse.ArgumentParser) -> None:
    """Add the launch flags. None means not given: the job file's value holds."""
    parser.epilog, parser.formatter_class = LAUNCH_EPILOG, argparse.RawDescriptionHelpFormatter
    job = parser.add_argument_group("the job")
    _work_flags(
        job,
        symbols="symbols to train (default: all of the data)",
        data="candles to add to the data set (default: all in it), or a script's folder",
    )
    how = parser.add_argument_group("the launch")
    how.add_argument("--detach", action="store_true", help="return as soon as the machine is started")
    how.add_argument("--dry-run", action="store_true", help="print the plan and launch nothing")
    how.add_argument(
        "--resume",
        metavar="RUN",
        help="continue a run of the same job that ended without its models: a new run that begins with what"
        " it finished and its checkpoints",
    )
    how.add_argument("-y", "--yes", action="store_true", help="don't ask before spending money")
    how.add_argument(
        "--interrupt",
        metavar="SHARE",
        help="in a rehearsal: have AWS take the machine back at 40%% of the steps, or at 40%%,no-notice",
    )
    _where_flags(parser)


VERBS: dict[str, tuple[str, Callable[[Parser], None] | None]] = {  # help and flags, in the order of `--help`
    "launch": ("train models on an ephemeral GPU machine", _launch_flags),
    "plan": ("time and price of a job on every kind of machine, without an account", _plan_flags),
    "agent": (
        "run a job on this machine instead of an EC2 instance: docs/scripts-and-machines.md",
        _agent_flags,
    ),
    "status": ("list open and recent runs, or show one; closes runs whose launcher is gone", _status_flags),
    "logs": ("print a run's log, from S3", _logs_flags),
    "attach": ("open a shell, run a command or forward a port on a running machine", _attach_flags),
    "stop": ("end a run: upload finished models, then terminate its machine", _stop_flags),
    "receipts": ("list receipts, or print one", _receipts_flags),
    "pull": ("download a run's models, receipt and log", _pull_flags),
    "backup": ("back the local folder up to the bucket, or restore it", _backup_flags),
    "doctor": ("check everything that a run depends on, and print what to do", _doctor_flags),
    "down": ("remove the stack except its bucket; refuses while a run is open", _down_flags),
    "models": ("list models in the bucket, or download one", _models_flags),
    "retrains": ("scheduled runs: publish a job, list, preview, run now, pause", _retrains_flags),
    "predict": ("predict a file or folder of candles with one or many models, as one CSV", _predict_flags),
    # Its flags are those of trainer/train/__main__.py, which main.py calls.
    "train": ("train every model of a job on this machine, without any cloud", None),
    "profiles": (
        "list GPU profiles, or measure this machine's fastest settings and its price",
        _profiles_flags,
    ),
    "rehearse": ("point this shell at the embedded AWS, or end it", _rehearse_flags),
}
