"""Flags of the verbs that take a job or a model: launch, plan, agent, profiles, predict."""

from __future__ import annotations

import argparse

from trainer.base.arguments import Parser
from trainer.cli.flags.shared import RUN, job_flag, json_flag, own_files_flag, set_flag, where_flags

LAUNCH_EPILOG = """\
Settings: defaults, then ~/.config/mayfly/defaults.toml, then the job file, then these
flags, then --set; later ones win.
docs/reference.md explains every key of a job; --set names it with its table,
such as train.epochs=3. Region and credentials come from AWS's own variables
(AWS_REGION, AWS_PROFILE, ...); --rehearse needs neither.
"""


def agent_flags(parser: Parser) -> None:
    parser.add_argument(
        "--here",
        action="store_true",
        required=True,
        help="run here; the deadline ends the run, not the machine",
    )
    job_flag(parser)
    parser.add_argument(
        "--script", metavar="FILE", help="your own training script, unchanged: docs/scripts-and-machines.md"
    )
    parser.add_argument("--data", metavar="PATH", help="candles, or a script's folder")
    parser.add_argument("--max-duration", metavar="TIME", help="longest run: 90m, 6h (default: 12h)")
    set_flag(parser)
    parser.add_argument(
        "--python",
        default="",
        metavar="FILE",
        help="Python whose packages a script uses (default: Mayfly's own)",
    )
    parser.add_argument("--detach", action="store_true", help="return as soon as the agent is started")
    others = ("instance", "model", "target", "symbols", "timeframe", "market", "epochs", "budget")
    parser.set_defaults(**dict.fromkeys(others))
    where_flags(parser, local=True)


def profiles_flags(profiles: Parser) -> None:
    profiles.set_defaults(json=False, job=None)
    actions = profiles.add_subparsers(dest="action", metavar="ACTION", parser_class=Parser)
    listing = actions.add_parser(
        "list", help="list GPU profiles and the one that applies on this machine (default)"
    )
    tune = actions.add_parser("tune", help="compare the strategies for a job's models on this machine")
    job_flag(tune)
    tune.add_argument("--data", metavar="PATH", help="candles of the run (default: the job's)")
    tune.add_argument(
        "--seconds",
        type=float,
        metavar="N",
        help="time to measure, 60 at most (default: 9)",
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
        set_flag(parser)
        parser.add_argument(
            "--device", default="auto", choices=("auto", "cpu", "cuda"), help="default: a GPU if there is one"
        )
    tune.set_defaults(verb="tune")  # modules of their own
    bench.set_defaults(verb="bench")
    for parser in (profiles, listing):
        of_job = "print batch, models at a time and time of a job on each, hourly and daily"
        parser.add_argument("--job", metavar="FILE", default=argparse.SUPPRESS, help=of_job)
    for parser in (profiles, listing, tune, bench):
        json_flag(parser, default=argparse.SUPPRESS)  # either side of the action


def work_flags(
    job: argparse._ActionsContainer, *, symbols: str, data: str, market: str = "buy on demand (default)"
) -> None:
    """Add the flags of a job. None means not given."""
    job_flag(job)
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
    set_flag(job)


def plan_flags(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "Without --stack it needs no account, stack or network, and its prices are dated lists."
    job = parser.add_argument_group("the job")
    work_flags(
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
        help="your own GPU and the dollars of an hour of it: rtx_4090=0.12, or its"
        " rtx_4090=watts:450,kwh:0.17,price:1900,years:3; repeat it",
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
    json_flag(form)


def launch_flags(parser: argparse.ArgumentParser) -> None:
    """Add the launch flags. None means not given: the job file's value holds."""
    parser.epilog, parser.formatter_class = LAUNCH_EPILOG, argparse.RawDescriptionHelpFormatter
    job = parser.add_argument_group("the job")
    work_flags(
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
    where_flags(parser)


def predict_flags(parser: Parser) -> None:
    parser.add_argument(
        "models",
        nargs="*",
        metavar="MODEL",
        help=".safetensors files, folders of them, names or keys in the bucket",
    )
    parser.add_argument("--run", default="", metavar="RUN", help=f"all models of one run: {RUN}")
    parser.add_argument(
        "--data", required=True, metavar="PATH", help="file or folder of candles: parquet, CSV, Arrow"
    )
    own_files_flag(parser)
    parser.add_argument("--symbols", metavar="A,B", help="symbols to predict (default: all of the models)")
    parser.add_argument("--last", type=int, metavar="N", help="predict only the last N bars of each symbol")
    parser.add_argument(
        "--held",
        type=float,
        metavar="SHARE",
        help="of agents: what is held now, such as 0 or -1 of the money; prints what to hold next",
    )
    where_flags(parser, local=True)
