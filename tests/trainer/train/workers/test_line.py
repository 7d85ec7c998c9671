"""The line between a worker and its helpers: objects arrive as they were sent."""

from __future__ import annotations

import multiprocessing
import threading
from typing import Any

import numpy as np
import pytest
import torch

from trainer.base.errors import DataError
from trainer.train.workers.line import Line


def sent(value: Any) -> Any:
    """Return an object that went through a line."""
    ours, theirs = multiprocessing.Pipe()
    sender = threading.Thread(target=Line(theirs).send, args=(value,))
    sender.start()  # it waits for the reader where a pipe is full
    received = Line(ours).receive()
    sender.join()
    return received


def test_tensors_and_arrays_arrive_as_they_are():
    rows_TF = torch.arange(60_000, dtype=torch.float32).view(-1, 3)
    values: dict[str, Any] = {
        "rows": rows_TF,
        "part": rows_TF[7:9],
        "turned": rows_TF.t(),
        "half": rows_TF[:4].bfloat16(),
        "none": torch.empty(0, 3),
        "label": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "view": np.arange(10)[::3],
        "number": torch.tensor(3),
    }
    received = sent(values)
    for name, value in values.items():
        if isinstance(value, torch.Tensor):
            assert received[name].dtype == value.dtype and torch.equal(received[name], value), name
        else:
            assert np.array_equal(received[name], value), name
    received["rows"][7, 0] = -1
    assert received["part"][0, 0] == -1, "what shared memory shares it"
    assert received["label"].flags.writeable


def test_errors_of_ours_keep_their_parts():
    error = sent(DataError("A-USD has 3 bars", why="a gap", do="Bring more."))
    assert isinstance(error, DataError) and str(error) == "A-USD has 3 bars (a gap). Bring more."


def test_a_line_whose_other_end_has_gone_ends():
    ours, theirs = multiprocessing.Pipe()
    theirs.close()
    with pytest.raises((EOFError, OSError)):
        Line(ours).receive()
