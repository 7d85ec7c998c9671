"""Add complete hourly bars of three coins to a data set, from the last that it has on: python fetch.py FOLDER

Public data, no key. Each call writes a new file for each coin, since a data set keeps the files that it has.
"""

import csv
import sys
from datetime import datetime, timezone
from pathlib import Path

import ccxt

COINS, TIMEFRAME, PAGE = ("BTC/USD", "ETH/USD", "SOL/USD"), "1h", 300
FIRST_BARS = 26 * 7 * 24  # of an empty set: half a year


def main(folder: Path) -> None:
    exchange = ccxt.coinbaseexchange()
    step = exchange.parse_timeframe(TIMEFRAME) * 1000
    complete = exchange.milliseconds() // step * step  # the bar that began then is still open
    for coin in COINS:
        name = f"{coin.replace('/', '-')}_{TIMEFRAME}"
        last = last_bar(folder, name)
        since = last + step if last else complete - FIRST_BARS * step
        bars = list(complete_bars(exchange, coin, since, complete, step))
        if bars:
            first = datetime.fromtimestamp(bars[0][0] / 1000, timezone.utc)
            path = folder / f"{name}_{first:%Y%m%dT%H%M}.csv"
            write(path, bars)
            print(f"{path.name}: {len(bars)} bars")


def complete_bars(exchange, coin, since, complete, step):
    """Yield [milliseconds, open, high, low, close, volume] of each bar, page by page."""
    while since < complete:
        page = exchange.fetch_ohlcv(coin, TIMEFRAME, since=since, limit=PAGE)
        bars = [bar for bar in page if since <= bar[0] < complete]
        yield from bars
        since = bars[-1][0] + step if bars else since + PAGE * step  # a page without trades is a hole


def last_bar(folder, name):
    """Return when the set's last bar of a coin began, in milliseconds; 0 without one."""
    files = folder.glob(f"{name}_*.csv")
    times = [line["timestamp"] for path in files for line in csv.DictReader(path.open())]
    return max((int(datetime.fromisoformat(time).timestamp() * 1000) for time in times), default=0)


def write(path, bars):
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["timestamp", "open", "high", "low", "close", "volume"])
        for time, *values in bars:
            writer.writerow([datetime.fromtimestamp(time / 1000, timezone.utc).isoformat(), *values])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
