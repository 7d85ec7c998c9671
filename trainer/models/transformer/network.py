"""The transformer: a window cut into patches, a pre-norm encoder over them, a linear head on the last token.

Owns the architecture only; scaling, windows, loss and training are in `trainer.train`. Patches as in PatchTST
(Nie et al. 2023, https://arxiv.org/abs/2211.14730), layer norm before each layer (Xiong et al. 2020,
https://arxiv.org/abs/2002.04745), windows normalized by their own mean and deviation as in RevIN (Kim et al.
2022). The network also reads these two, since levels predict volatility. All bars of a window precede its
output, so attention needs no mask. Only the last token has outputs: without gradients, the last block
computes no other.

Shapes: T bars of a window, B batch, F features, N tokens, D width, H heads, C columns of the context, O
outputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from trainer.base.settings import CONTEXT
from trainer.models.layers import in_full_precision, keep_mask, run
from trainer.models.transformer import CONTEXT_WIDTH, EXPANSION

SMALLEST_VARIANCE = 1e-5  # as in RevIN: keeps a feature that is constant in a window finite
# Up to which attention is matrix products on a GPU in half precision: cuDNN has tiles of 64 tokens.
# A compiled step of 1,024 windows of 16 took 37.7 ms instead of 41.3, one of 64 windows that is not compiled
# 8.3 instead of 7.9 (151 M, H200, 2026-11-28).
FEW_TOKENS = 16


def build(architecture: dict[str, Any], *, recompute: bool = False) -> Transformer:
    """Build an untrained network. Its weights come from torch's global generator."""
    return Transformer(**architecture, recompute=recompute)


def for_series(
    tensors: Mapping[str, torch.Tensor], numbers: Sequence[int], *, like: nn.Module
) -> dict[str, torch.Tensor]:
    """Return a network's tensors with the series embeddings arranged for the network `like`.

    Series n gets the embedding of series `numbers[n - 1]`; series beyond, or with number 0, get the shared
    one.
    """
    name = "context.tables.series"
    before, after = tensors[name], like.get_parameter(name)
    rows = [0, *numbers, *[0] * len(after)][: len(after)]
    return {**tensors, name: before[[row if row < len(before) else 0 for row in rows]]}


class Transformer(nn.Module):
    """The network: outputs for a window of bars."""

    def __init__(
        self,
        *,
        features: int,
        blocks: int,
        width: int,
        heads: int,
        tokens: int,
        patch: int,
        dropout: float,
        instance_norm: bool,
        series: int,
        hide_series: float,
        outputs: int = 1,
        recompute: bool,
    ) -> None:
        """`recompute`: compute each block's activations again in the backward pass, for less memory and more
        time.
        """
        super().__init__()
        self._tokens, self._patch, self._recompute = tokens, patch, recompute
        self.patches = nn.Linear(patch * features, width)
        self.positions = nn.Parameter(torch.empty(tokens, width))
        self.level = nn.Linear(2 * features, width, bias=False) if instance_norm else None
        self.context = ContextEmbedding(width=width, series=series, hide_series=hide_series)
        self.blocks = nn.ModuleList(
            EncoderBlock(width=width, heads=heads, dropout=dropout) for _ in range(blocks)
        )
        self.norm = nn.LayerNorm(width, bias=False)
        self.head = nn.Linear(width, outputs)
        self._draw()

    def forward(
        self,
        x_TBF: torch.Tensor,
        keys_L2: torch.Tensor | None = None,
        first_row: int = 0,
        context_BC: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return outputs (B, O) float32 for scaled windows (T, B, F) float32.

        Dropout is on if `keys_L2` ((1 + 2 x blocks, 2) int32) is given; `first_row` is the position of x's
        first window in its batch. `context_BC` (int64) is the context of each window's last bar; None:
        unknown.
        """
        _, rows, features = x_TBF.shape
        x_BTF = x_TBF.transpose(0, 1)
        tokens_BND = self.positions.expand(rows, -1, -1)
        if self.level is not None:
            mean_B1F = x_BTF.mean(1, keepdim=True)
            x_BTF = x_BTF - mean_B1F
            # Not torch's `var`, which takes seven times as long over this dimension (torch 2.13 on a CPU).
            deviation_B1F = (x_BTF.square().mean(1, keepdim=True) + SMALLEST_VARIANCE).sqrt()
            x_BTF = x_BTF / deviation_B1F
            tokens_BND = tokens_BND + self.level(torch.cat([mean_B1F, deviation_B1F.log()], dim=-1))
        x_BTF = x_BTF.reshape(rows, self._tokens, self._patch * features)
        tokens_BND = tokens_BND + self.patches(x_BTF)
        del x_BTF  # normalized, a copy of all windows
        if context_BC is None:
            context_BC = torch.zeros(rows, len(CONTEXT), dtype=torch.int64, device=x_TBF.device)
        series_key = None if keys_L2 is None else keys_L2[:1]
        tokens_BND = tokens_BND + self.context(context_BC, series_key, first_row)[:, None]
        for number, block in enumerate(self.blocks):
            keys_22 = None if keys_L2 is None else keys_L2[1 + 2 * number : 3 + 2 * number]
            ends = number + 1 == len(self.blocks) and keys_22 is None and not torch.is_grad_enabled()
            tokens_BND = run(block, tokens_BND, keys_22, first_row, ends, recompute=self._recompute)
        return in_full_precision(self.head, self.norm(tokens_BND[:, -1]))

    def _draw(self) -> None:
        """Draw the weights with deviation 1/sqrt(inputs), and less for layers that add to the residual stream
        (GPT-2).
        """
        for part in self.modules():
            if isinstance(part, nn.Linear):
                _draw_uniform(part.weight, deviation=part.in_features**-0.5)
                if part.bias is not None:
                    nn.init.zeros_(part.bias)
        for block in self.blocks:
            for added in (block.attended, block.inner_out):
                with torch.no_grad():
                    added.weight.mul_((2 * len(self.blocks)) ** -0.5)  # type: ignore[union-attr, operator]
        _draw_uniform(self.positions, deviation=0.1)


class ContextEmbedding(nn.Module):
    """Sum of the embeddings of series and calendar of a window's last bar."""

    def __init__(self, *, width: int, series: int, hide_series: float) -> None:
        super().__init__()
        self._series, self._hide = series, hide_series
        most = {**CONTEXT, "series": series}
        # Not `nn.Embedding`: it draws normal numbers, for which the meta device loads libraries for 2 s
        # (torch 2.13).
        embedded = min(width, CONTEXT_WIDTH)
        self.tables = nn.ParameterDict({name: torch.empty(most[name] + 1, embedded) for name in CONTEXT})
        self.out = nn.Linear(embedded, width, bias=False)
        for table in self.tables.values():
            _draw_uniform(table, deviation=0.1)

    def forward(
        self, context_BC: torch.Tensor, key_12: torch.Tensor | None = None, first_row: int = 0
    ) -> torch.Tensor:
        """Return (B, D). A series without its own embedding gets number 0's, as does a share of training
        windows.
        """
        numbers = dict(zip(CONTEXT, context_BC.unbind(1), strict=True))
        series_B = numbers["series"]
        known_B = series_B <= self._series
        if key_12 is not None and self._hide > 0:
            rows = len(series_B)
            known_B = known_B & keep_mask(
                key_12, first_row=first_row, shape_TBH=(1, rows, 1), probability=1 - self._hide
            ).view(rows)
        numbers["series"] = torch.where(known_B, series_B, 0)
        embedded_BE = sum(
            nn.functional.embedding(numbers[name], table) for name, table in self.tables.items()
        )
        out_BD: torch.Tensor = self.out(embedded_BE)
        return out_BD


class EncoderBlock(nn.Module):
    """Attention, then an inner layer, each on normalized tokens and with a residual connection."""

    def __init__(self, *, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self._heads, self._dropout = heads, dropout
        self.attention_norm = nn.LayerNorm(width, bias=False)
        self.queries_keys_values = nn.Linear(width, 3 * width, bias=False)
        self.attended = nn.Linear(width, width, bias=False)
        self.inner_norm = nn.LayerNorm(width, bias=False)
        self.inner_in = nn.Linear(width, EXPANSION * width, bias=False)
        self.inner_out = nn.Linear(EXPANSION * width, width, bias=False)

    def forward(
        self,
        tokens_BND: torch.Tensor,
        keys_22: torch.Tensor | None = None,
        first_row: int = 0,
        last_alone: bool = False,
    ) -> torch.Tensor:
        """Return (B, N, D), or with `last_alone`, which takes no keys, the last token (B, 1, D)."""
        keys = (None, None) if keys_22 is None or not self._dropout else (keys_22[:1], keys_22[1:])
        if last_alone:
            tokens_BND = tokens_BND[:, -1:] + self._attend_last(self.attention_norm(tokens_BND))
        else:
            attended = self._kept(self._attend(self.attention_norm(tokens_BND)), keys[0], first_row)
            tokens_BND = tokens_BND + attended
            del attended
        inner = self.inner_out(nn.functional.gelu(self.inner_in(self.inner_norm(tokens_BND))))
        return tokens_BND + self._kept(inner, keys[1], first_row)

    def _attend(self, tokens_BND: torch.Tensor) -> torch.Tensor:
        rows, tokens, width = tokens_BND.shape
        cut = self.queries_keys_values(tokens_BND).view(rows, tokens, 3, self._heads, width // self._heads)
        queries, keys, values = cut.permute(2, 0, 3, 1, 4)  # (B, H, N, D / H) each
        is_few = tokens <= FEW_TOKENS and queries.device.type == "cuda" and queries.dtype != torch.float32
        attend = attention_of_few if is_few else scaled_dot_product_attention
        attended = attend(queries, keys, values)
        return self.attended(attended.transpose(1, 2).reshape(rows, tokens, width))  # type: ignore[no-any-return]

    def _attend_last(self, tokens_BND: torch.Tensor) -> torch.Tensor:
        """Return what attention gives the last token (B, 1, D), without the queries of the others."""
        rows, tokens, width = tokens_BND.shape
        weight_ED = self.queries_keys_values.weight
        last_B1D = nn.functional.linear(tokens_BND[:, -1:], weight_ED[:width])
        queries = last_B1D.view(rows, 1, self._heads, -1).transpose(1, 2)
        cut = nn.functional.linear(tokens_BND, weight_ED[width:]).view(rows, tokens, 2, self._heads, -1)
        keys, values = cut.permute(2, 0, 3, 1, 4)
        attended = scaled_dot_product_attention(queries, keys, values)
        return self.attended(attended.transpose(1, 2).reshape(rows, 1, width))  # type: ignore[no-any-return]

    def _kept(self, added_BND: torch.Tensor, key_12: torch.Tensor | None, first_row: int) -> torch.Tensor:
        """Return a layer's output (B, N, D) after dropout."""
        if key_12 is None:
            return added_BND
        rows, tokens, width = added_BND.shape
        keep = keep_mask(
            key_12, first_row=first_row, shape_TBH=(tokens, rows, width), probability=1 - self._dropout
        )
        return added_BND * keep[0].transpose(0, 1) * (1 / (1 - self._dropout))


def attention_of_few(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Return what `scaled_dot_product_attention` does (B, H, N, D / H), by products of whole scores."""
    scores = torch.matmul(queries * queries.shape[-1] ** -0.5, keys.transpose(-1, -2))
    return torch.matmul(scores.softmax(-1, dtype=torch.float32).to(values.dtype), values)


def _draw_uniform(weight: torch.Tensor, *, deviation: float) -> None:
    """Fill a weight with uniform numbers of this deviation around zero."""
    nn.init.uniform_(weight, -(3**0.5) * deviation, 3**0.5 * deviation)
