"""Hand-made candles for the tests of trainer/data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

WriteCsv = Callable[..., Path]


@pytest.fixture(autouse=True, scope="package")
def one_thread() -> Iterator[None]:
    """Compute as a worker does; threads that wait for each other on a busy machine take seconds for
    nothing.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def write_csv(tmp_path: Path) -> WriteCsv:
    """Write rows of text below a header: `write_csv("AAA_1m.csv", "time,o,h,l,c,v", ["0,1,1,1,1,1"])`."""

    def write(name: str, header: str, rows: list[str]) -> Path:
        path = tmp_path / name
        path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
        return path

    return write
