"""A model of your own in ten lines: a GRU over a window of bars, its last state to the outputs.

See docs/models.md.
"""

from torch import nn


class MyNet(nn.Module):
    def __init__(self, features, outputs, hidden=32):
        super().__init__()
        self.gru = nn.GRU(features, hidden, batch_first=True)
        self.head = nn.Linear(hidden, outputs)

    def forward(self, x_NLF):
        return self.head(self.gru(x_NLF)[0][:, -1])
