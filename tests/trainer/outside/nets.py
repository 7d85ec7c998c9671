"""Modules as users write them, each with what is hard about it. No import of ours: they are loaded as
files.
"""

import torch
from torch import nn


class Norm(nn.Module):
    """Statistics of a batch, in buffers of two types."""

    def __init__(self, features, outputs, hidden=6):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(features, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, outputs)
        )

    def forward(self, x_NLF):
        return self.net(x_NLF[:, -1])


class Chance(nn.Module):
    """Dropout of torch's, and noise from a generator of its own."""

    def __init__(self, features, outputs, hidden=6):
        super().__init__()
        self.first, self.head = nn.Linear(features, hidden), nn.Linear(hidden, outputs)
        self.dropout, self.generator = nn.Dropout(0.3), torch.Generator()

    def forward(self, x_NLF):
        hidden_NH = self.dropout(torch.relu(self.first(x_NLF.mean(1))))
        if self.training:
            hidden_NH = hidden_NH + 0.1 * torch.randn(hidden_NH.shape, generator=self.generator)
        return self.head(hidden_NH)


class Attention(nn.Module):
    """Attention with a mask that is made on the first call and kept, and dropout inside."""

    def __init__(self, features, outputs, lookback, width=8):
        super().__init__()
        self.into, self.head, self.mask = nn.Linear(features, width), nn.Linear(width, outputs), None
        self.place = nn.Parameter(torch.zeros(lookback, width))
        self.layer = nn.TransformerEncoderLayer(width, 2, dim_feedforward=16, dropout=0.2, batch_first=True)

    def forward(self, x_NLF):
        if self.mask is None:
            self.mask = torch.triu(torch.full((x_NLF.shape[1],) * 2, float("-inf")), diagonal=1)
        return self.head(self.layer(self.into(x_NLF) + self.place, src_mask=self.mask)[:, -1])


class Knots(nn.Module):
    """Weights that are tied, frozen, of whole numbers, never used, and used in some batches only; buffers
    that change.
    """

    def __init__(self, features, outputs):
        super().__init__()
        self.one, self.two, self.head = nn.Linear(features, 6), nn.Linear(6, 6), nn.Linear(6, outputs)
        self.tied = nn.Linear(6, 6)
        self.tied.weight = self.two.weight
        self.frozen = nn.Linear(6, 6).requires_grad_(False)
        self.order = nn.Parameter(torch.arange(6), requires_grad=False)
        self.unused = nn.Linear(3, 3)
        self.sometimes = nn.Parameter(torch.ones(6))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(6, dtype=torch.bfloat16), persistent=False)
        self.register_buffer("last", None)

    def forward(self, x_NLF):
        hidden_NH = torch.tanh(self.one(x_NLF[:, -1]))[:, self.order]
        hidden_NH = self.tied(torch.relu(self.two(hidden_NH))) + self.frozen(hidden_NH) + self.mean.float()
        if self.training:
            self.calls += 1
            self.mean = (0.9 * self.mean.float() + 0.1 * hidden_NH.detach().mean(0)).bfloat16()
            self.last = x_NLF.detach()[:, -1].sum(0)
            if int(self.calls) % 3 == 0:
                hidden_NH = hidden_NH * self.sometimes
        return self.head(hidden_NH)


class Lazy(nn.Module):
    """Weights whose shape the first bars give, norm among them."""

    def __init__(self, features, outputs):
        super().__init__()
        self.net = nn.Sequential(nn.LazyLinear(5), nn.LazyBatchNorm1d(), nn.ReLU(), nn.LazyLinear(outputs))

    def forward(self, x_NLF):
        return self.net(x_NLF.flatten(1))


class Chunks(nn.Module):
    """A reader of chunks: two convolutions with norm between."""

    def __init__(self, features, outputs, width=6):
        super().__init__()
        self.one, self.norm, self.two = (
            nn.Conv1d(features, width, 3),
            nn.BatchNorm1d(width),
            nn.Conv1d(width, outputs, 2),
        )
        self.receptive_field = 4

    def forward(self, x_NLF):
        return self.two(torch.relu(self.norm(self.one(x_NLF.transpose(1, 2))))).transpose(1, 2)


# Whether each may be sliced.
NETS = {"Norm": False, "Chance": False, "Attention": True, "Knots": False, "Lazy": False, "Chunks": False}
