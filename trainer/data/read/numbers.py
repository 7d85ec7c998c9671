"""Numbers of an Arrow column as an array.

Arrow's own `to_numpy` loads pandas, which takes a process a third of a second.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from trainer.data.pieces import long_array


def array_of(column: Any) -> np.ndarray:
    """Return a column of int64 or float64 as an array of its own; a missing number is NaN."""
    if column.null_count or not column.num_chunks:
        return np.array(column.to_numpy())
    chunks = [np.from_dlpack(chunk) for chunk in column.chunks]
    return np.concatenate(chunks, out=long_array((len(column),), chunks[0].dtype.type))
