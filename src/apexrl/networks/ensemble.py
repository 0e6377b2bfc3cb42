"""K MLPs at once: each layer is one batched product."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

Members = slice | list[int]
"""Which of the K: their numbers, or a slice of them, which copies no weights."""
EVERY = slice(None)


class Ensemble(nn.Module):
    """K MLPs with ReLU between their layers.

    Layers begin as ``torch.nn.Linear`` does, U(±1/√fan_in), each member by itself.

    Args:
        count: K.
        sizes: inputs, hidden units …, outputs.
    """

    def __init__(self, count: int, sizes: Sequence[int]) -> None:
        super().__init__()
        self.count = count
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for inputs, outputs in pairwise(sizes):
            bound = inputs**-0.5
            self.weights.append(nn.Parameter(torch.empty(count, inputs, outputs).uniform_(-bound, bound)))
            self.biases.append(nn.Parameter(torch.empty(count, 1, outputs).uniform_(-bound, bound)))

    def forward(self, x: Tensor, members: Members = EVERY, frozen: bool = False) -> Tensor:
        """float32 [B, inputs], the same for all; returns [K, B, outputs], or of the ``members`` that are asked.

        ``frozen``: the gradient goes to ``x`` alone.
        """
        weights, biases = list[Tensor](self.weights), list[Tensor](self.biases)
        if members != EVERY:
            weights, biases = [weight[members] for weight in weights], [bias[members] for bias in biases]
        if frozen:
            weights, biases = [weight.detach() for weight in weights], [bias.detach() for bias in biases]
        y = x.expand(len(weights[0]), *x.shape)
        for weight, bias in zip(weights[:-1], biases[:-1], strict=True):
            y = torch.baddbmm(bias, y, weight).relu_()
        if weights[-1].shape[2] > 1:
            return torch.baddbmm(biases[-1], y, weights[-1])
        dots: Tensor = torch.linalg.vecdot(y, weights[-1].mT)  # on a CPU a batched product takes 15 times as long
        return dots.unsqueeze(2) + biases[-1]
