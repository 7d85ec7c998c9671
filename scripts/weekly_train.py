"""A script as a weekly retrain runs it: writes the mean of the prices in its data set. Standard
library only.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

side = os.environ["MAYFLY_VALUE_SIDE"]
files = sorted(Path(os.environ["MAYFLY_DATA"]).glob("*.csv"))
prices = [float(line) for file in files for line in file.read_text().split()]
mean = sum(prices) / len(prices)
with Path(os.environ["MAYFLY_EVENTS"]).open("a") as events:
    for step in range(1, 6):
        loss = sum((price - mean * step / 5) ** 2 for price in prices) / len(prices)
        events.write(
            json.dumps({"step": step, "steps": 5, "epoch": step, "epochs": 5, "validation_loss": loss}) + "\n"
        )
Path(os.environ["MAYFLY_OUT"], "mean.json").write_text(json.dumps({"side": side, "mean": mean}))
print(f"{side}: mean {mean:.2f} of {len(prices)} prices in {len(files)} files")
