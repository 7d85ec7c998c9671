"""Flags of `mayfly data`: what it does with candles before a training."""

from __future__ import annotations

from trainer.base.arguments import Parser
from trainer.cli.flags.shared import RUN, job_flag, json_flag, set_flag, where_flags

SET = "data set (default: main)"


def data_flags(parser: Parser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True, parser_class=Parser)
    fetch = actions.add_parser("fetch", help="fetch bars from an exchange or from Yahoo into a folder")
    fetch_flags(fetch)
    check = actions.add_parser("check", help="list what candles hold, and everything that is wrong with them")
    check_flags(check)
    push = actions.add_parser("push", help="upload candles to a data set, as far as they are new there")
    push_flags(push)
    pull = actions.add_parser("pull", help="download a data set's candles, of now or of then")
    pull_flags(pull)
    ls = actions.add_parser("ls", help="list the data sets of the bucket, or the files of one")
    ls_flags(ls)


def fetch_flags(parser: Parser) -> None:
    parser.epilog = (
        "The same command again fetches what is new or missing, and nothing twice. It needs pip install"
        " 'mayfly[fetch]', and exits with 2 if a symbol failed; the others are there."
    )
    parser.set_defaults(verb="data_fetch")
    parser.add_argument(
        "symbols", nargs="*", metavar="SYMBOL", help="such as BTC-USD; a ticker of Yahoo: AAPL"
    )
    parser.add_argument("--file", metavar="FILE", help="symbols from a text file, one in a line")
    parser.add_argument(
        "--source", default="", metavar="NAME", help="coinbase, binance, kraken (its last 720 bars) or yahoo"
    )
    parser.add_argument("--timeframe", default="1d", metavar="TF", help="such as 1m, 1h or 1d (default: 1d)")
    parser.add_argument("--since", required=True, metavar="DATE", help="first day (UTC), such as 2024-01-31")
    parser.add_argument(
        "--until", default="", metavar="DATE", help="day before which it ends (default: the last whole bar)"
    )
    parser.add_argument("--out", required=True, metavar="FOLDER", help="folder for the files")
    parser.add_argument(
        "--rehearse",
        action="store_true",
        help="fetch generated bars, marked SYNTHETIC, from an exchange on this machine (default:"
        " MAYFLY_REHEARSE=1)",
    )
    json_flag(parser)


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
