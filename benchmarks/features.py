"""Time and memory of features: the 37 of version 1.0, from parquet to rows, beside pandas, polars and another
commit.

    python -m benchmarks.features --data FOLDER          seven years of minutes of three symbols (10 minutes)
    python -m benchmarks.features --quick --data FOLDER  a month (seconds)
    ... --before CHECKOUT                                the trainer of another checkout as a contender

FOLDER has real candles of a minute; the bars of up to three symbols are repeated. `pip install polars` adds
polars. Each contender is a process of its own with one thread, which reads a file, computes (N, 37) float32
and goes on to the next; CPU time and peak memory are those after its imports. Rounds are interleaved. What
contenders compute agrees, and the script says how closely: their rolling sums round differently. Writes
benchmarks/results/features.json.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

MINUTES_OF_SEVEN_YEARS = 3_681_720
MINUTES_OF_A_MONTH = 43_200
SPANS = (5, 15, 60, 240)
MOVE = 1e-5
MIB = 2**20
ROOT = Path(__file__).parents[1]
SYMBOLS = 3
WARM_BARS = 2_000


def main() -> None:
    """Prepare the files, run the contenders in turn, print and store a table."""
    options = _options()
    if options.contender:
        _contend(options.contender, Path(options.data))
    else:
        _compare(options)


def _compare(options: argparse.Namespace) -> None:
    from benchmarks.rounds import interleave, machine, median, ratio, write

    bars = MINUTES_OF_A_MONTH if options.quick else MINUTES_OF_SEVEN_YEARS
    with tempfile.TemporaryDirectory() as folder:
        files = _repeat(Path(options.data), Path(folder), bars)
        names = ["mayfly", *(["before"] if options.before else []), "pandas"]
        names += ["polars"] if importlib.util.find_spec("polars") else []
        memory: dict[str, float] = {}
        sums: dict[str, list[float]] = {}

        def contender(name: str) -> Callable[[], float]:
            def run() -> float:
                found = _run(name, Path(folder), options.before if name == "before" else ROOT)
                memory[name] = max(memory.get(name, 0.0), found["mib"])
                sums[name] = found["last"]
                return 1 / float(found["seconds"])

            return run

        rates = interleave({name: contender(name) for name in names}, rounds=options.rounds)
    rows = {
        name: {
            "cpu_seconds": round(1 / median(rates, name), 2),
            "mayfly_is_faster": round(ratio(rates, "mayfly", name), 2),
            "mib": round(memory[name]),
            "differs": float(np.abs(np.subtract(sums[name], sums["mayfly"])).max()),
        }
        for name in names
    }
    print(f"{files} symbols x {bars:,} bars, one thread, {options.rounds} rounds")
    for name, row in rows.items():
        print(
            f"{name:8} {row['cpu_seconds']:8.2f} s of CPU  mayfly {row['mayfly_is_faster']:5.2f}x"
            f"  {row['mib']:6,} MiB  last row differs by {row['differs']:.1e}"
        )
    nanoseconds = operations()
    for name, times in nanoseconds.items():
        print(f"{name:20} " + "  ".join(f"{size} rows {ns:.2f} ns" for size, ns in times.items()))
    found = {"machine": machine(), "bars": bars, "symbols": files, "rows": rows, "operations": nanoseconds}
    write("features", found, options.out)


def operations() -> dict[str, dict[int, float]]:
    """Return nanoseconds a number of float64 operations of numpy and torch, by rows, on one thread."""
    import torch

    torch.set_num_threads(1)
    found: dict[str, dict[int, float]] = {}
    for rows in (1 << 13, 1 << 16):
        ones, others = (np.random.default_rng(seed).random(rows) + 0.5 for seed in (0, 1))
        one, other = torch.from_numpy(ones), torch.from_numpy(others)
        calls: dict[str, Callable[[], Any]] = {
            "numpy add": lambda ones=ones, others=others: ones + others,
            "torch add": lambda one=one, other=other: one + other,
            "numpy minimum": lambda ones=ones, others=others: np.minimum(ones, others),
            "torch minimum": lambda one=one, other=other: torch.minimum(one, other),
            "numpy log": lambda ones=ones: np.log(ones),
            "torch log": lambda one=one: one.log(),
        }
        for name, call in calls.items():
            best, count = float("inf"), max(1, 1_000_000 // rows)
            for _ in range(5):
                began = time.process_time()
                for _ in range(count):
                    call()
                best = min(best, (time.process_time() - began) / count)
            found.setdefault(name, {})[rows] = best * 1e9 / rows
    return found


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", required=True, help="folder with candles of a minute")
    parser.add_argument("--before", help="another checkout of this repository")
    parser.add_argument("--quick", action="store_true", help="a month instead of seven years")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--contender", help=argparse.SUPPRESS)
    return parser.parse_args()


def _repeat(source: Path, folder: Path, bars: int) -> int:
    """Write the bars of up to three symbols, repeated to so many minutes each; return their number."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from trainer.data.read.reading import CandleFolder

    (folder / "warm").mkdir()
    with tempfile.TemporaryDirectory() as scratch:
        candles = CandleFolder(source, Path(scratch), timeframe="1m")
        symbols = candles.symbols[:SYMBOLS]
        for symbol in symbols:
            its = candles.read(symbol)
            begin = np.datetime64("2015-01-01T00:00", "ns")
            columns = {"timestamp": begin + np.arange(bars) * np.timedelta64(60, "s")}
            for name in ("open", "high", "low", "close", "volume"):
                columns[name] = np.resize(getattr(its, name), bars)
            pq.write_table(pa.table(columns), folder / f"{symbol}_1m.parquet")
            few = {name: values[:WARM_BARS] for name, values in columns.items()}
            pq.write_table(pa.table(few), folder / "warm" / f"{symbol}_1m.parquet")
    return len(symbols)


def _run(name: str, folder: Path, root: str | Path) -> dict[str, Any]:
    """Run a contender in a process; return CPU seconds, peak MiB and its last row."""
    command = [sys.executable, __file__, "--data", str(folder), "--contender", name]
    threads = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "POLARS_MAX_THREADS", "ARROW_NUM_THREADS")
    paths = os.pathsep.join(filter(None, (str(root), os.environ.get("PYTHONPATH", ""))))
    environment = {**os.environ, **dict.fromkeys(threads, "1"), "PYTHONPATH": paths}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=root, check=False)
    if done.returncode:
        raise SystemExit(f"{name} failed: {done.stderr[-2000:]}")
    return dict(json.loads(done.stdout))


def _contend(name: str, folder: Path) -> None:
    """Compute the features of every file, and print what it took."""
    compute = {"pandas": of_pandas, "polars": of_polars}.get(name, of_mayfly)
    for file in (folder / "warm").glob("*.parquet"):
        compute(file)  # imports, and what is prepared once
    files = sorted(folder.glob("*.parquet"))
    before = _peak()
    began = time.process_time()
    for file in files:
        rows = compute(file)
        final = rows[-1].astype(float).tolist()
        del rows
    seconds = time.process_time() - began
    print(json.dumps({"seconds": seconds, "mib": _peak() - before, "last": final}))


def _peak() -> float:
    """Return the most memory that this process has held, in MiB. `ru_maxrss` begins with its parent's."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:  # macOS, which counts bytes
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / MIB
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def of_mayfly(file: Path) -> np.ndarray:
    """Return the rows (N, 37) float32 of a file's bars."""
    import torch

    from trainer.data.features import compute_inputs
    from trainer.data.read.reading import CandleFolder

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        folder = CandleFolder(file, Path(scratch))
        candles = folder.read(folder.symbols[0])
    return compute_inputs(candles).numpy()


def of_pandas(file: Path) -> np.ndarray:
    """Return the same, by pandas."""
    import pandas as pd

    frame = pd.read_parquet(file)
    opened, high, low, close = (np.log(frame[name]) for name in ("open", "high", "low", "close"))
    volume, returns = frame["volume"], close.diff()
    made = {"log_return_1": returns}
    for span in SPANS:
        made[f"log_return_{span}"] = close.diff(span)
    deviation = {span: returns.rolling(span).std(ddof=0) for span in SPANS}
    for span in (60, 240):
        made[f"momentum_{span}"] = close.diff(span) / ((deviation[span] + MOVE) * np.sqrt(span))
    for span in SPANS:
        made[f"log_volatility_{span}"] = np.log(deviation[span] + MOVE)
    for span in SPANS[1:]:
        its = close.rolling(span)
        made[f"price_zscore_{span}"] = (close - its.mean()) / (its.std(ddof=0) + MOVE)
    for span in SPANS[1:]:
        its = volume.rolling(span)
        made[f"volume_zscore_{span}"] = (volume - its.mean()) / its.std(ddof=0)
    made["bar_range"], made["bar_body"] = high - low, close - opened
    made["upper_wick"] = high - np.maximum(opened, close)
    made["lower_wick"] = np.minimum(opened, close) - low
    made["bar_gap"] = opened - close.shift()
    reach = np.maximum(high, close.shift()) - np.minimum(low, close.shift())
    true_range = reach.ewm(alpha=1 / 14).mean() + MOVE
    made["log_atr_14"] = np.log(true_range)
    made["rsi_14"] = returns.ewm(alpha=1 / 14).mean() / returns.abs().ewm(alpha=1 / 14).mean()
    for span in SPANS[1:]:
        highest, lowest = high.rolling(span).max(), low.rolling(span).min()
        made[f"stochastic_{span}"] = (close - (lowest + highest) / 2) / (highest - lowest + MOVE)
    fast, slow = close.ewm(span=12).mean(), close.ewm(span=26).mean()
    made["ema_ratio_12"], made["ema_ratio_26"] = close - fast, close - slow
    made["macd_12_26"] = (fast - slow) / true_range
    sign = np.sign(returns)
    made["up_share_60"] = sign.rolling(60).mean()
    made["volume_imbalance_60"] = (sign * volume).rolling(60).sum() / volume.rolling(60).sum()
    nanoseconds = frame["timestamp"].astype("int64")
    for name, period in (("day", 86_400 * 10**9), ("week", 7 * 86_400 * 10**9)):
        angle = (nanoseconds % period) * (2 * np.pi / period)
        made[f"time_of_{name}_sin"], made[f"time_of_{name}_cos"] = np.sin(angle), np.cos(angle)
    made["log_seconds_since_last_bar"] = np.log1p(nanoseconds.diff() / 1e9)
    columns = {name: values.astype(np.float32) for name, values in made.items()}
    return np.ascontiguousarray(pd.DataFrame(columns).to_numpy())


def of_polars(file: Path) -> np.ndarray:
    """Return the same, by polars."""
    import polars as pl

    logs = [pl.col(name).log().alias(name) for name in ("open", "high", "low", "close")]
    frame = pl.read_parquet(file).with_columns(logs)
    opened, high, low, close, volume = (pl.col(name) for name in ("open", "high", "low", "close", "volume"))
    frame = frame.with_columns(close.diff().alias("r"))
    returns, last = pl.col("r"), close.shift()
    made = {"log_return_1": returns}
    for span in SPANS:
        made[f"log_return_{span}"] = close.diff(span)
    deviation = {span: returns.rolling_std(span, ddof=0) + MOVE for span in SPANS}
    for span in (60, 240):
        made[f"momentum_{span}"] = close.diff(span) / (deviation[span] * np.sqrt(span))
    for span in SPANS:
        made[f"log_volatility_{span}"] = deviation[span].log()
    for column, smallest, name in ((close, MOVE, "price"), (volume, 0.0, "volume")):
        for span in SPANS[1:]:
            wide = column.rolling_std(span, ddof=0) + smallest
            made[f"{name}_zscore_{span}"] = (column - column.rolling_mean(span)) / wide
    upper, lower = pl.max_horizontal(opened, close), pl.min_horizontal(opened, close)
    made |= {"bar_range": high - low, "bar_body": close - opened}
    made |= {"upper_wick": high - upper, "lower_wick": lower - low, "bar_gap": opened - last}
    reach = pl.max_horizontal(high, last) - pl.min_horizontal(low, last)
    true_range = reach.ewm_mean(alpha=1 / 14) + MOVE
    made["log_atr_14"] = true_range.log()
    made["rsi_14"] = returns.ewm_mean(alpha=1 / 14) / returns.abs().ewm_mean(alpha=1 / 14)
    for span in SPANS[1:]:
        highest, lowest = high.rolling_max(span), low.rolling_min(span)
        made[f"stochastic_{span}"] = (close - (lowest + highest) / 2) / (highest - lowest + MOVE)
    fast, slow = close.ewm_mean(span=12), close.ewm_mean(span=26)
    made |= {"ema_ratio_12": close - fast, "ema_ratio_26": close - slow}
    made["macd_12_26"] = (fast - slow) / true_range
    made["up_share_60"] = returns.sign().rolling_mean(60)
    flow = (returns.sign() * volume).rolling_sum(60)
    made["volume_imbalance_60"] = flow / volume.rolling_sum(60)
    nanoseconds = pl.col("timestamp").cast(pl.Datetime("ns")).cast(pl.Int64)
    for name, period in (("day", 86_400 * 10**9), ("week", 7 * 86_400 * 10**9)):
        angle = (nanoseconds % period).cast(pl.Float64) * (2 * np.pi / period)
        made |= {f"time_of_{name}_sin": angle.sin(), f"time_of_{name}_cos": angle.cos()}
    made["log_seconds_since_last_bar"] = (nanoseconds.diff() / 1e9).log1p()
    rows = frame.select(one.cast(pl.Float32).alias(name) for name, one in made.items())
    return np.ascontiguousarray(rows.to_numpy())


if __name__ == "__main__":
    main()
