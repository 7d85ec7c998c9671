"""A script of a new user, written by docs/scripts-and-machines.md alone: it knows the contract's variables and
nothing else of Mayfly.

It fits a small network to points with noise on its inputs, and goes on from its checkpoint exactly: weights,
optimizer, and the random numbers that order the batches and make the noise.
"""

import csv
import json
import os
import sys
from pathlib import Path

import torch

DATA, OUT = Path(os.environ["MAYFLY_DATA"]), Path(os.environ["MAYFLY_OUT"])
CHECKPOINT = Path(os.environ["MAYFLY_CHECKPOINTS"]) / "newest.pt"
EVENTS, NOTICE = Path(os.environ["MAYFLY_EVENTS"]), Path(os.environ["MAYFLY_NOTICE"])
EPOCHS = 8

rows = torch.tensor([[float(cell) for cell in row] for row in csv.reader((DATA / "points.csv").open())])
inputs, labels = rows[:, :-1], rows[:, -1:]

torch.manual_seed(7)
network = torch.nn.Sequential(torch.nn.Linear(inputs.shape[1], 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
begun, steps = 0, []


def save_checkpoint(epoch):
    state = {"network": network.state_dict(), "optimizer": optimizer.state_dict()}
    state |= {"epoch": epoch, "steps": steps, "random": torch.get_rng_state()}
    beside = CHECKPOINT.with_suffix(".new")
    torch.save(state, beside)
    beside.rename(CHECKPOINT)  # a state counts once nothing in it changed


if CHECKPOINT.exists():
    state = torch.load(CHECKPOINT)
    network.load_state_dict(state["network"])
    optimizer.load_state_dict(state["optimizer"])
    torch.set_rng_state(state["random"])
    begun, steps = state["epoch"], state["steps"]
    print(f"goes on after epoch {begun}", flush=True)

for epoch in range(begun + 1, EPOCHS + 1):
    batches = torch.randperm(len(inputs)).split(32)
    for batch in batches:
        noisy = inputs[batch] + 0.1 * torch.randn_like(inputs[batch])
        loss = torch.nn.functional.binary_cross_entropy_with_logits(network(noisy), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    steps.append(len(batches))
    save_checkpoint(epoch)
    with EVENTS.open("a") as events:
        events.write(json.dumps({"epoch": epoch, "epochs": EPOCHS, "loss": loss.item()}) + "\n")
    print(f"epoch {epoch} is done", flush=True)
    if NOTICE.exists() and NOTICE.read_text() == "stop\n":
        sys.exit("this machine is taken away")

torch.save(network.state_dict(), OUT / "network.pt")
(OUT / "steps.json").write_text(json.dumps({"steps": sum(steps)}))
