"""Flags of `mayfly data`: what it does with candles before a training."""

from __future__ import annotations

from trainer.base.arguments import Parser
from trainer.cli.flags.shared import RUN, where_flags

SET = "data set (default: main)"


def data_flags(parser: Parser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True, parser_class=Parser)
    push = actions.add_parser("push", help="upload candles to a data set, as far as they are new there")
    push_flags(push)
    pull = actions.add_parser("pull", help="download a data set's candles, of now or of then")
    pull_flags(pull)
    ls = actions.add_parser("ls", help="list the data sets of the bucket, or the files of one")
    ls_flags(ls)


def push_flags(parser: Parser) -> None:
    parser.set_defaults(verb="data_sync")
    parser.add_argument("path", metavar="PATH", help="file or folder of candles")
    parser.add_argument("--set", default="", metavar="NAME", help=SET)
    where_flags(parser, local=True)


def pull_flags(parser: Parser) -> None:
    parser.set_defaults(verb="data_sync")
    parser.add_argument("set", nargs="?", default="", metavar="SET", help=SET)
    at_flag(parser)
    parser.add_argument(
        "--out", default="", metavar="DIR", help="folder (default: ./<set>, or candles/<set> in MAYFLY_LOCAL)"
    )
    parser.add_argument("--overwrite", action="store_true", help="also replace files that differ")
    where_flags(parser, local=True)


def ls_flags(parser: Parser) -> None:
    parser.set_defaults(verb="data_sync")
    parser.add_argument("set", nargs="?", default="", metavar="SET", help="data set (default: all)")
    at_flag(parser)
    where_flags(parser, local=True)


def at_flag(parser: Parser) -> None:
    help_text = f"as a run read it ({RUN}), or as of a time: 2026-11-20, or 2026-11-20T14:30Z"
    parser.add_argument("--at", default="", metavar="WHEN", help=help_text)
