"""Flags of the verbs about runs, models, retrains and the stack."""

from __future__ import annotations

from trainer.base.arguments import Parser
from trainer.cli.flags.shared import (
    RUN,
    job_flag,
    json_flag,
    own_files_flag,
    set_flag,
    stack_flag,
    where_flags,
)


def status_flags(parser: Parser) -> None:
    parser.add_argument("run", nargs="?", metavar="RUN", help=f"{RUN} (default: open runs and the last ones)")
    parser.add_argument(
        "-f", "--follow", action="store_true", help="show one run's progress until it ends, as a launch does"
    )
    parser.add_argument(
        "--events", action="store_true", help="show all that happened to one run, with the reasons"
    )
    where_flags(parser, local=True)


def logs_flags(parser: Parser) -> None:
    parser.add_argument("run", metavar="RUN", help=RUN)
    parser.add_argument("-f", "--follow", action="store_true", help="keep printing until the run ends")
    parser.add_argument(
        "--tail",
        type=int,
        default=0,
        metavar="N",
        help="print only the last N lines; of --metrics, epochs (default: 3)",
    )
    parser.add_argument(
        "--metrics",
        action="store_true",
        help="print the losses of each model's last epochs instead of the log",
    )
    where_flags(parser, local=True)


def attach_flags(parser: Parser) -> None:
    parser.usage = "%(prog)s [-h] [--forward LOCAL:REMOTE] [--stack NAME] [--rehearse] RUN [-- COMMAND ...]"
    parser.add_argument("run", metavar="RUN", help=f"{RUN}; after --, a command (default: a shell)")
    parser.add_argument(
        "--forward",
        action="append",
        default=[],
        metavar="LOCAL:REMOTE",
        help="forward a local port to a port of the machine",
    )
    where_flags(parser, json=False)


def stop_flags(parser: Parser) -> None:
    parser.add_argument("run", metavar="RUN", help=RUN)
    where_flags(parser, local=True)


def receipts_flags(parser: Parser) -> None:
    parser.add_argument("run", nargs="?", metavar="RUN", help=f"{RUN} (default: all)")
    parser.add_argument(
        "--by", choices=("month", "job", "symbol"), default="", help="sum time and dollars of all runs"
    )
    parser.add_argument(
        "--open", action="store_true", help="write its report, a page, to a file and open it in the browser"
    )
    where_flags(parser, local=True)


def pull_flags(parser: Parser) -> None:
    parser.add_argument("run", metavar="RUN", help=RUN)
    parser.add_argument(
        "--out", default="", metavar="DIR", help="folder (default: ./<run>, or models/<run> in MAYFLY_LOCAL)"
    )
    parser.add_argument(
        "--live", action="store_true", help="continue until the run ends: models, log and curves"
    )
    parser.add_argument(
        "--track",
        action="append",
        default=[],
        choices=("mlflow", "wandb"),
        metavar="TRACKER",
        help="also write the ended run to mlflow or wandb, once; may be given several times",
    )
    where_flags(parser, local=True)


def backup_flags(parser: Parser) -> None:
    parser.add_argument(
        "folder", nargs="?", default="", metavar="FOLDER", help="folder (default: MAYFLY_LOCAL)"
    )
    parser.add_argument(
        "--restore", action="store_true", help="download missing files, checked by version and hash"
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="with --restore: also replace files that differ"
    )
    where_flags(parser)


def doctor_flags(parser: Parser) -> None:
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
    where_flags(parser)


def down_flags(parser: Parser) -> None:
    parser.add_argument("-y", "--yes", action="store_true", help="don't ask (passed on to pulumi destroy)")
    stack_flag(parser)
    json_flag(parser)


def rehearse_flags(parser: Parser) -> None:
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
    json_flag(parser)


def models_flags(models: Parser) -> None:
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
    compare = actions.add_parser(
        "compare", help="compare models, or all of several runs, on one test span; show one alone"
    )
    compare.add_argument("models", nargs="+", metavar="RUN|MODEL", help="the first is the reference")
    compare.add_argument(
        "--data", metavar="PATH", help="candles of the runs: score the average of each run's seeds and folds"
    )
    diff = actions.add_parser("diff", help="show what differs between a production model and another")
    diff.add_argument("model", metavar="NAME", help="GROUP/NAME, as listed")
    diff.add_argument(
        "other", nargs="?", default="", metavar="MODEL", help="name, RUN/NAME or key (default: a version)"
    )
    diff.add_argument(
        "--version", default="", metavar="ID", help="its version (default: the newest with other bytes)"
    )
    verify = actions.add_parser(
        "verify", help="check that bytes, hash, card and decision of production models agree"
    )
    verify.add_argument("models", nargs="*", metavar="NAME", help="GROUP/NAME (default: all)")
    prune = actions.add_parser(
        "prune",
        help="list old models that nothing needs, or delete them",
        epilog="Kept are models of open and of the newest runs, of production, and those that a kept one's"
        " card names.",
    )
    prune.add_argument(
        "--older-than",
        type=int,
        required=True,
        metavar="DAYS",
        help="age from which models are deleted, 2 at least",
    )
    prune.add_argument(
        "--keep", type=int, default=10, metavar="N", help="newest runs whose models stay (default: 10)"
    )
    prune.add_argument("--delete", action="store_true", help="delete what is listed, for good")
    shown = actions.add_parser(
        "show", help="show what a model was made of: code, lock, job, data versions, image, chip"
    )
    shown.add_argument("name", metavar="MODEL", help="name, RUN/NAME, GROUP/NAME or key of a model")
    shown.set_defaults(verb="models_show")
    reproduce = actions.add_parser(
        "reproduce",
        help="train models again here from code and data of then, and compare the losses",
        epilog="To the bit on the processor of then; within a tolerance on a GPU. A script's files are"
        " compared instead. Runs the run's own code, and writes nothing to the bucket.",
    )
    reproduce.add_argument("name", metavar="RUN|MODEL", help="a run with all of its models, or one model")
    reproduce.add_argument(
        "--steps",
        type=int,
        metavar="K",
        help="the first steps alone, of which up to 32 are recorded (default: the whole training)",
    )
    reproduce.set_defaults(verb="models_reproduce")
    export = actions.add_parser(
        "export", help="write a model as ONNX, with its scaler, or its card as markdown"
    )
    export.add_argument(
        "model", metavar="MODEL", help="a .safetensors file, or name, RUN/NAME or key of a model"
    )
    export.add_argument(
        "--out", default="", metavar="FILE", help="file to write (default: NAME.onnx, or NAME.md, here)"
    )
    export.add_argument(
        "--card", action="store_true", help="the card as markdown, in the format of the Hugging Face Hub"
    )
    own_files_flag(export)
    export.set_defaults(verb="models_export")
    others = (shown, reproduce, export)
    for parser in (listing, pull, production, promote, rollback, compare, diff, verify, prune, *others):
        where_flags(parser, local=True)


def retrains_flags(retrains: Parser) -> None:
    actions = retrains.add_subparsers(dest="action", metavar="ACTION", required=True, parser_class=Parser)
    publish = actions.add_parser(
        "publish", help="check a job as a launch would, and publish it with this code"
    )
    publish.add_argument("name", metavar="NAME", help="a retrain of the stack's setting `retrains`")
    job_flag(publish, required=True)
    set_flag(publish)
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
        where_flags(parser)
