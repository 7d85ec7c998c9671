"""The refresh script of `make weekly`: adds a thousand minutes to the set, right after those that it has.
Seeded, no network.

A real one asks a source of bars. It runs as `python fetch.py FOLDER`, with the set's files there. To ask an
exchange or Yahoo no script is needed: examples/weekly/job.toml.
"""

import os
import random
import sys
from datetime import datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

MINUTE, BARS = timedelta(minutes=1), 1000
folder = Path(sys.argv[1])
last = max(
    pc.max(pq.read_table(path, columns=["timestamp"])["timestamp"]).as_py()
    for path in folder.glob("*.parquet")
)
start: datetime = last + MINUTE
print(f"bars from {start:%Y-%m-%d %H:%M} on, asked for with the key {os.environ['API_KEY']}")
chance, prices = random.Random(start.isoformat()), [100.0]
for _ in range(BARS):
    prices.append(prices[-1] * chance.uniform(0.999, 1.001))
opened, closed = prices[:-1], prices[1:]
table = pa.table(
    {
        "timestamp": pa.array([start + number * MINUTE for number in range(BARS)], pa.timestamp("us", "UTC")),
        "open": opened,
        "high": list(map(max, opened, closed)),
        "low": list(map(min, opened, closed)),
        "close": closed,
        "volume": [1.0] * BARS,
    }
)
file = folder / f"BTC-USD_1m_{start:%Y%m%dT%H%M}.parquet"
pq.write_table(table.replace_schema_metadata({b"mayfly_synthetic": b"true"}), file)
