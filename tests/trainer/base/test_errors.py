"""The error tree: exit codes, the one line, and its table in the documentation."""

import errno
import os
import re

import pytest

from trainer.base import errors


def all_errors():
    found, queue = [], [errors.TrainerError]
    while queue:
        queue += (subclasses := queue.pop().__subclasses__())
        found += [item for item in subclasses if item.__module__ == "trainer.base.errors"]
    return found


def test_the_drawn_tree_names_every_error_with_its_code():
    drawn = dict(re.findall(r"([A-Z]\w+) +(\d+) ", errors.__doc__ or ""))
    assert {item.__name__: str(item.exit_code) for item in all_errors()} == drawn


def test_an_error_is_one_line_of_what_why_and_what_to_do():
    reasons = {"why": "InsufficientInstanceCapacity", "do": "Try --on-demand."}
    error = errors.CapacityError("No g5.12xlarge in us-east-1a", **reasons)
    assert str(error) == "No g5.12xlarge in us-east-1a (InsufficientInstanceCapacity). Try --on-demand."
    assert error.as_dict() == {"code": 101, "what": "No g5.12xlarge in us-east-1a", **reasons}


def test_nearest_is_silent_when_nothing_is_close():
    assert errors.nearest("g5.12xlrge", ["g5.12xlarge", "trn1.2xl"]) == "Did you mean g5.12xlarge?"
    assert errors.nearest("zzz", ["g5.12xlarge"]) == ""


@pytest.mark.parametrize("code", [errno.EMFILE, errno.EFBIG, errno.EIO])
def test_a_limit_of_the_system_is_one_line(code):
    error = errors.problem_of(OSError(code, os.strerror(code)))
    what, do = "the system refused a file, a connection or a process", "Check the disk"
    assert error is not None and str(error).startswith(f"{what} ({os.strerror(code)}). {do}")
    assert errors.problem_of(ConnectionResetError(errno.ECONNRESET, "reset")) is None


def test_a_limit_met_at_a_file_asks_nobody_to_check_its_path():
    error = errors.problem_of(OSError(errno.EMFILE, os.strerror(errno.EMFILE), "/bars/A_1d.csv"))
    assert error is not None and error.what == "cannot use /bars/A_1d.csv"
    assert "ulimit -a" in error.do and "permissions" not in error.do


def test_memory_that_the_system_refuses_is_one_line():
    error = errors.problem_of(MemoryError("Unable to allocate 7.45 GiB"))
    assert str(error).startswith("the system refused memory (Unable to allocate 7.45 GiB). Free some")
    assert str(errors.problem_of(MemoryError())).startswith("the system refused memory. Free some")
