"""A small classifier of points, in plain torch: a tutorial's loop that reads and writes the folders it is
given, tells its loss (MAYFLY_EVENTS), resumes from its checkpoint, and ends when a spot machine is taken
away.
"""

import argparse
import csv
import json
import os
from pathlib import Path

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=5)
parser.add_argument("--lr", type=float, default=1e-2)
options = parser.parse_args()

data = Path(os.environ["MAYFLY_DATA"])
out = Path(os.environ["MAYFLY_OUT"])
checkpoint = Path(os.environ["MAYFLY_CHECKPOINTS"]) / "last.pt"
notice = Path(os.environ["MAYFLY_NOTICE"])
events = Path(os.environ["MAYFLY_EVENTS"])

with (data / "points.csv").open() as file:
    rows = torch.tensor([[float(value) for value in row] for row in csv.reader(file)])
inputs, labels = rows[:, :-1], rows[:, -1].long()

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(inputs.shape[1], 16), nn.ReLU(), nn.Linear(16, 2)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)
first = 1
if checkpoint.exists():  # started again, on this machine or on the next one
    saved = torch.load(checkpoint, map_location=device)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    first = saved["epoch"] + 1
    print(f"resumed after epoch {saved['epoch']}")

for epoch in range(first, options.epochs + 1):
    for batch in torch.randperm(len(inputs)).split(64):
        loss = nn.functional.cross_entropy(model(inputs[batch].to(device)), labels[batch].to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}  loss {loss.item():.4f}")
    with events.open("a") as file:
        event = {"epoch": epoch, "epochs": options.epochs, "loss": loss.item(), "train_loss": loss.item()}
        file.write(json.dumps(event) + "\n")
    temporary = checkpoint.with_suffix(".part")
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}, temporary)
    temporary.replace(checkpoint)
    if notice.exists() and notice.read_text() == "stop\n":  # AWS takes this machine: another one goes on
        raise SystemExit(f"stopped after epoch {epoch}")

accuracy = (model(inputs.to(device)).argmax(1).cpu() == labels).float().mean().item()
print(f"accuracy {accuracy:.3f}")
torch.save(model.state_dict(), out / "model.pt")
(out / "scores.json").write_text(json.dumps({"accuracy": accuracy}))
