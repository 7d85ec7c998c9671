"""Flags of `mayfly data`: what it does with candles before a training."""

from __future__ import annotations

from trainer.base.arguments import Parser
from trainer.cli.flags.shared import job_flag, json_flag, set_flag


def data_flags(parser: Parser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True, parser_class=Parser)
    check = actions.add_parser("check", help="list what candles hold, and everything that is wrong with them")
    check_flags(check)


def check_flags(parser: Parser) -> None:
    parser.epilog = "Exits with 2 if training would leave a symbol out, or can't read a file."
    parser.set_defaults(verb="data_check")
    parser.add_argument("path", metavar="PATH", help="file or folder of candles")
    parser.add_argument(
        "--fix",
        metavar="OUT",
        help="write repaired copies of the files into a new folder: sorted, each bar once, without bars that"
        " training refuses",
    )
    parser.add_argument("--html", metavar="FILE", help="draw bars, holes and defects over time as one page")
    job_flag(parser)
    set_flag(parser)
    json_flag(parser)
