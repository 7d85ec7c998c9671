"""Flags that several verbs have."""

from __future__ import annotations

import argparse

TYPE_CHECKING = False  # typing's own constant, without its import
if TYPE_CHECKING:
    from typing import Any

RUN = "run id, a part of one, or last"


def own_files_flag(parser: argparse.ArgumentParser) -> None:
    """Add `--model-file`, which may be given several times."""
    parser.add_argument(
        "--model-file",
        action="append",
        default=[],
        metavar="FILE.py",
        help="the Python file of a model, or of features, of your own; may be given several times",
    )


def where_flags(parser: argparse.ArgumentParser, *, json: bool = True, local: bool = False) -> None:
    stack_flag(parser)
    parser.add_argument(
        "--rehearse",
        action="store_true",
        help="use the embedded AWS of this machine instead of an account (default: MAYFLY_REHEARSE=1)",
    )
    if local:
        help_text = "use a folder instead of a bucket, without AWS (default: MAYFLY_LOCAL)"
        parser.add_argument("--local", nargs="?", const="", metavar="FOLDER", help=help_text)
    if json:
        json_flag(parser)


def stack_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--stack", default="dev", metavar="NAME", help="Pulumi stack (default: dev)")


def json_flag(parser: argparse._ActionsContainer, default: Any = False) -> None:
    help_text = "print one JSON document on stdout"
    parser.add_argument("--json", action="store_true", default=default, help=help_text)


def job_flag(parser: argparse._ActionsContainer, *, required: bool = False) -> None:
    parser.add_argument("--job", required=required, metavar="FILE", help="job file (TOML)")


def set_flag(parser: argparse._ActionsContainer) -> None:
    help_text = "any other key of the job"
    parser.add_argument(
        "--set", dest="settings", action="append", default=[], metavar="KEY=VALUE", help=help_text
    )
