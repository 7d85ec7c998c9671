"""Forecast with a model file of Mayfly in plain torch and safetensors, without Mayfly: each family's network
in about ten lines.

    python plain_torch.py MODEL.safetensors [INPUTS.npz]

INPUTS.npz has `x` (N, bars, features), features that are not scaled, in the order of the card's `features`;
of a model of several series `series` (N,), the place of each window's symbol in the card's `series` (one more
is any other symbol of a panel); of a transformer `context` (N, 4), whole numbers. It prints the outputs;
without a file those of zeros.
"""

import json
import sys

import numpy as np
import torch
from safetensors import safe_open
from torch import nn
from torch.nn import functional as F


def read(path):
    """Return a model's tensors by name, and its card."""
    with safe_open(path, "pt") as file:
        names = [name for name in list(file.keys()) if not name.startswith("held-out/")]
        return {name: file.get_tensor(name) for name in names}, json.loads(file.metadata()["mayfly_card"])


def scaled(x, card, series):
    scalers = [one["scaler"] for one in [*card["series"], *filter(None, [card["panel"]])]]
    mean, std = (torch.tensor([one[part] for one in scalers])[series, None] for part in ("mean", "std"))
    return ((x - mean) / std).clamp(-scalers[0]["limit"], scalers[0]["limit"])


def lstm(weights, size, x, context):
    for layer in range(size["layers"]):
        net = nn.LSTM(x.shape[2], size["hidden"], batch_first=True)
        net.load_state_dict({name: weights[f"lstms.{layer}.{name}"] for name in net.state_dict()})
        x = net(x)[0]
    return F.linear(x[:, -1], weights["head.weight"], weights["head.bias"])


def mlp(weights, size, x, context):
    x = x.flatten(1)
    for layer in range(size["layers"]):
        x = torch.tanh(F.linear(x, weights[f"hidden.{layer}.weight"], weights[f"hidden.{layer}.bias"]))
    return F.linear(x, weights["head.weight"], weights["head.bias"])


def tcn(weights, size, x, context):
    x = x.transpose(1, 2)
    for block, dilation in enumerate(size["dilations"]):
        y = x
        for name in (f"blocks.{block}.first", f"blocks.{block}.second"):
            length, way = (weights[f"{name}.parametrizations.weight.original{part}"] for part in (0, 1))
            norm = way.norm(dim=(1, 2), keepdim=True)  # weight norm: a length and a direction
            y = torch.relu(F.conv1d(y, length * way / norm, weights[f"{name}.bias"], dilation=dilation))
        if f"blocks.{block}.straight.weight" in weights:
            x = F.conv1d(
                x, weights[f"blocks.{block}.straight.weight"], weights[f"blocks.{block}.straight.bias"]
            )
        x = torch.relu(y + x[:, :, x.shape[2] - y.shape[2] :])
    return F.conv1d(x, weights["head.weight"], weights["head.bias"]).transpose(1, 2)


def transformer(weights, size, x, context):
    width = size["width"]
    tokens = weights["positions"].expand(len(x), -1, -1)
    if "level.weight" in weights:
        mean = x.mean(1, keepdim=True)
        deviation = ((x - mean).square().mean(1, keepdim=True) + 1e-5).sqrt()
        x = (x - mean) / deviation
        tokens = tokens + F.linear(torch.cat([mean, deviation.log()], -1), weights["level.weight"])
    patches = x.reshape(len(x), size["tokens"], -1)
    tokens = tokens + F.linear(patches, weights["patches.weight"], weights["patches.bias"])
    series, *clock = context.unbind(1)
    clock = [torch.where(series <= size["series"], series, 0), *clock]
    tables = [weights[f"context.tables.{name}"] for name in ("series", "weekday", "month", "time_of_day")]
    known = sum(table[column] for table, column in zip(tables, clock, strict=True))
    tokens = tokens + F.linear(known, weights["context.out.weight"])[:, None]
    for number in range(size["blocks"]):
        part = _below(weights, f"blocks.{number}.")
        normed = F.layer_norm(tokens, (width,), part["attention_norm.weight"])
        cut = F.linear(normed, part["queries_keys_values.weight"]).view(
            *tokens.shape[:2], 3, size["heads"], -1
        )
        heads = F.scaled_dot_product_attention(*cut.permute(2, 0, 3, 1, 4)).transpose(1, 2).flatten(2)
        tokens = tokens + F.linear(heads, part["attended.weight"])
        normed = F.layer_norm(tokens, (width,), part["inner_norm.weight"])
        tokens = tokens + F.linear(
            F.gelu(F.linear(normed, part["inner_in.weight"])), part["inner_out.weight"]
        )
    last = F.layer_norm(tokens[:, -1], (width,), weights["norm.weight"])
    return F.linear(last, weights["head.weight"], weights["head.bias"])


FAMILIES = {"lstm": lstm, "mlp": mlp, "tcn": tcn, "transformer": transformer}


def _below(tensors, prefix):
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


@torch.no_grad()
def outputs(path, x, series=None, context=None):
    """Return a model's outputs for x (N, bars, features); of a model of several networks, those of each."""
    tensors, card = read(path)
    x = scaled(x.float(), card, torch.zeros(len(x), dtype=torch.int64) if series is None else series)
    if context is None:
        context = torch.zeros(len(x), 4, dtype=torch.int64)
    family, size = FAMILIES[card["family"]], card["architecture"]
    if card["members"] == 1:
        return family(tensors, size, x, context)
    members = [_below(tensors, f"members.{number}.") for number in range(card["members"])]
    return torch.stack([family(one, size, x, context) for one in members])


if __name__ == "__main__":
    _, card = read(sys.argv[1])
    given = dict(np.load(sys.argv[2])) if sys.argv[2:] else {}
    x = torch.tensor(given.get("x", np.zeros((1, card["lookback"], len(card["features"])), np.float32)))
    others = {name: torch.tensor(given[name]) for name in ("series", "context") if name in given}
    print(json.dumps(outputs(sys.argv[1], x, **others).tolist()))
