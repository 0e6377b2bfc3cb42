"""K MLPs at once, as one node of autograd's graph with its gradient written out.

PyTorch would take a batched product for a last layer of one output too, which on a CPU costs fifteen times the dot
products that it is, and has no way to leave out gradients of the weights where only that of the input is wanted.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


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

    def forward(self, x: Tensor, first: int = 0, frozen: bool = False) -> Tensor:
        """float32 [B, inputs], the same for all; returns [K, B, outputs], or of the ``first`` so many members.

        ``frozen``: the gradient goes to ``x`` alone.
        """
        parameters: list[Tensor] = [*self.weights, *self.biases]
        if first:
            parameters = [parameter[:first] for parameter in parameters]
        if frozen:
            parameters = [parameter.detach() for parameter in parameters]
        values: Tensor = _Layers.apply(x, *parameters)  # type: ignore[no-untyped-call]
        return values


class _Layers(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, *parameters: Tensor) -> Tensor:
        """``parameters``: the weights [K, inputs, outputs] of all layers, then their biases [K, 1, outputs]."""
        layers = len(parameters) // 2
        weights, biases = parameters[:layers], parameters[layers:]
        inputs = [x.expand(len(weights[0]), *x.shape)]
        for weight, bias in zip(weights[:-1], biases[:-1], strict=True):
            inputs.append(torch.baddbmm(bias, inputs[-1], weight).relu_())
        ctx.save_for_backward(*inputs, *weights)
        if weights[-1].shape[2] == 1:
            dots: Tensor = torch.linalg.vecdot(inputs[-1], weights[-1].mT)
            return dots.unsqueeze(2) + biases[-1]
        return torch.baddbmm(biases[-1], inputs[-1], weights[-1])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        layers = len(ctx.saved_tensors) // 2
        inputs, weights = ctx.saved_tensors[:layers], ctx.saved_tensors[layers:]
        for_x, for_weights = ctx.needs_input_grad[0], any(ctx.needs_input_grad[1:])
        if not for_weights and gradient.device.type == "cpu":
            return (_to_input(gradient, inputs, weights), *[None] * (2 * layers))
        of_weights: list[Tensor | None] = [None] * layers
        of_biases: list[Tensor | None] = [None] * layers
        for place in reversed(range(layers)):
            x, weight = inputs[place], weights[place]
            single = weight.shape[2] == 1
            if for_weights:
                of_biases[place] = gradient.sum(1, keepdim=True)
                of_weights[place] = (x * gradient).sum(1).unsqueeze(2) if single else torch.bmm(x.mT, gradient)
            if place or for_x:
                gradient = gradient * weight.mT if single else torch.bmm(gradient, weight.mT)
            if place:  # ReLU passes where it was positive
                torch.ops.aten.threshold_backward.grad_input(gradient, x, 0.0, grad_input=gradient)
        return (gradient.sum(0) if for_x else None, *of_weights, *of_biases)


def _to_input(gradient: Tensor, inputs: Sequence[Tensor], weights: Sequence[Tensor]) -> Tensor:
    """∂L/∂x [B, inputs] from ∂L/∂y [K, B, outputs], without the rows in which a member has none: of the smaller of two
    critics' values, that is half the work. Counting them would make a GPU wait."""
    total = torch.zeros_like(inputs[0][0])
    for member, own in enumerate(gradient):
        rows = own.any(dim=1).nonzero().squeeze(1)
        flow = own[rows]
        for place in reversed(range(len(weights))):
            flow = torch.mm(flow, weights[place][member].t())
            if place:
                flow = torch.ops.aten.threshold_backward(flow, inputs[place][member][rows], 0.0)
        total.index_add_(0, rows, flow)
    return total
