from __future__ import annotations

import math
import struct

from trainer.train.observing.tensorboard import ScalarFile

# TensorBoard's own reader (tensorboard 2.21.0, EventFileLoader) made of this what is written below, on
# 2026-11-21.
READ_BY_TENSORBOARD = (
    "1800000000000000a37f4b2209000020b061bfda411a0d627261696e2e4576656e743a32875ed199"
    "2800000000000000ff70164a09000040b061bfda4110ac022a1a0a0b0a046c6f7373150000003f0a0b0a04726174651500409a4418d60e42"
)


def test_a_file_is_byte_for_byte_what_tensorboard_read(tmp_path):
    file = ScalarFile(tmp_path / "model", now=1_795_000_000.5, suffix="one")
    file.add({"loss": 0.5, "rate": 1234.0}, step=300, now=1_795_000_001.0)
    (path,) = (tmp_path / "model").iterdir()
    assert path.name == "events.out.tfevents.1795000000.one"
    assert path.read_bytes().hex() == READ_BY_TENSORBOARD
    file.add({"loss": 0.4, "rate": 1234.0}, step=301, now=1_795_000_002.0)
    assert path.read_bytes().hex().startswith(READ_BY_TENSORBOARD)  # a further point is appended
    assert len(path.read_bytes().hex()) == len(READ_BY_TENSORBOARD) + 112


def test_a_number_beyond_float32_is_infinity(tmp_path):
    """The validation loss of a network that diverged is a float64, and must not end the training."""
    file = ScalarFile(tmp_path, now=0.0, suffix="one")
    file.add({"loss": 1e40, "gain": -1e300}, step=1, now=1.0)
    (path,) = tmp_path.iterdir()
    written = path.read_bytes()
    assert struct.pack("<f", math.inf) in written and struct.pack("<f", -math.inf) in written
