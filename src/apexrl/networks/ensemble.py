"""K MLPs at once: each layer is one batched product."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

Members = slice | list[int]
"""Which of the K: their numbers, or a slice of them, which copies no weights."""
EVERY = slice(None)


class Dropout:
    """Sets a share of all numbers to 0, and scales the others so that the mean stays (Srivastava et al. 2014).

    Args:
        share: 0 … 1, without 1.
        generator: on the CPU, of what is left out.
    """

    def __init__(self, share: float, generator: torch.Generator) -> None:
        self._kept = 1.0 - share
        self._generator = generator

    def __call__(self, x: Tensor) -> Tensor:
        """Of any shape and device."""
        mask = torch.empty(x.shape).bernoulli_(self._kept, generator=self._generator).div_(self._kept)
        return x * mask.to(x.device, non_blocking=True)


class Ensemble(nn.Module):
    """K MLPs with ReLU between their layers.

    Layers begin as ``torch.nn.Linear`` does, U(±1/√fan_in), each member by itself.

    Args:
        count: K.
        sizes: inputs, hidden units …, outputs.
        layer_norm: normalise each row of a hidden layer's units before ReLU, with a learned scale and shift for each.
    """

    def __init__(self, count: int, sizes: Sequence[int], layer_norm: bool = False) -> None:
        super().__init__()
        self.count = count
        self.scales, self.shifts = nn.ParameterList(), nn.ParameterList()
        if layer_norm:
            self.scales.extend(torch.ones(count, 1, units) for units in sizes[1:-1])
            self.shifts.extend(torch.zeros(count, 1, units) for units in sizes[1:-1])
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for inputs, outputs in pairwise(sizes):
            bound = inputs**-0.5
            self.weights.append(nn.Parameter(torch.empty(count, inputs, outputs).uniform_(-bound, bound)))
            self.biases.append(nn.Parameter(torch.empty(count, 1, outputs).uniform_(-bound, bound)))

    def forward(
        self, x: Tensor, members: Members = EVERY, frozen: bool = False, dropout: Dropout | None = None
    ) -> Tensor:
        """float32 [B, inputs], the same for all; returns [K, B, outputs], or of the ``members`` that are asked.

        Args:
            members: which of the K are asked.
            frozen: the gradient goes to ``x`` alone.
            dropout: of what hidden layers compute, before it is normalised.
        """

        def asked(parameters: nn.ParameterList) -> list[Tensor]:
            of_all = list[Tensor](parameters)
            some = of_all if members == EVERY else [one[members] for one in of_all]
            return [one.detach() for one in some] if frozen else some

        weights, biases, scales, shifts = map(asked, (self.weights, self.biases, self.scales, self.shifts))
        y = x.expand(len(weights[0]), *x.shape)
        for place, (weight, bias) in enumerate(zip(weights[:-1], biases[:-1], strict=True)):
            y = torch.baddbmm(bias, y, weight)
            if dropout is not None:
                y = dropout(y)
            if scales:
                y = torch.addcmul(shifts[place], nn.functional.layer_norm(y, y.shape[-1:]), scales[place])
            y = y.relu_()
        if weights[-1].shape[2] > 1:
            return torch.baddbmm(biases[-1], y, weights[-1])
        dots: Tensor = torch.linalg.vecdot(y, weights[-1].mT)  # on a CPU a batched product takes 15 times as long
        return dots.unsqueeze(2) + biases[-1]
