"""Products of an agent that acts on the CPU, by weights that lie in oneDNN's own order.

An actor's batch is small, and its weights stay as they are for many steps: 16 rows by a layer of 512×512 take 100 µs
with MKL, 70 with oneDNN, and 50 where the weights are in order already. Putting them in order takes 150.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from apexrl.agents.matrix_products import able, exact
from apexrl.agents.trained_network import Trained
from apexrl.networks import FlatParameters

LEAST_WORK = 1 << 21
"""Multiplications of a batch by a layer. With fewer, each of oneDNN's products costs more than it gains."""
WORTH = 8
"""Products by the same weights, with which putting them in order is worth its time."""


def quicken_acting(agent: Any, device: str) -> bool:
    """Let the large layers of ``agent`` be multiplied so wherever nothing is differentiated, if it is one of ours and
    acts on the CPU. Results differ in rounding alone.

    Its parameters may be changed by this process alone.

    Returns:
        Whether any layer is.
    """
    if device != "cpu" or not able() or not _has_operators() or not exact(_in_order_product):
        return False
    layers = [
        (one.parameters, layer)
        for one in getattr(agent, "networks", {}).values()
        if isinstance(one, Trained)
        for layer in one.network.modules()
        if type(layer) is nn.Linear and layer.bias is not None
    ]
    for parameters, layer in layers:
        layer.forward = ActingProduct(parameters, layer)  # type: ignore[method-assign, assignment]
    return bool(layers)


class ActingProduct:
    """x·Wᵀ + b of a linear layer whose parameters are in a vector, float32 [B, inputs] -> [B, outputs]."""

    def __init__(self, parameters: FlatParameters, layer: nn.Linear) -> None:
        self._parameters, self._layer = parameters, layer
        self._least_rows = -(-LEAST_WORK // layer.weight.numel())
        self._weights: tuple[Tensor, int] | None = None  # the vector and its version, of which `_uses` are
        self._uses = 0
        self._ordered: Tensor | None = None
        self._last_were_used = False  # often enough

    def __call__(self, x: Tensor) -> Tensor:
        layer = self._layer
        if x.ndim != 2 or len(x) < self._least_rows or torch.is_grad_enabled():
            return nn.functional.linear(x, layer.weight, layer.bias)
        weight = self._ordered if self._used() else None
        return _product(x, layer.weight if weight is None else weight, layer.bias)

    def __deepcopy__(self, memo: dict[int, Any]) -> Callable[[Tensor], Tensor]:
        """A copied layer, as of a target network, has parameters that nobody watches: it multiplies as layers do."""
        return partial(nn.Linear.forward, deepcopy(self._layer, memo))

    def _used(self) -> bool:
        """Count a product. Whether the weights are in order."""
        vector = self._parameters.vector
        if self._weights is None or self._weights[0] is not vector or self._weights[1] != vector._version:
            self._last_were_used = self._uses >= WORTH
            self._weights, self._uses, self._ordered = (vector, vector._version), 0, None
        self._uses += 1
        if self._ordered is None and (self._last_were_used or self._uses > WORTH):
            self._ordered = _in_order(self._layer.weight)
        return self._ordered is not None


def _has_operators() -> bool:
    """Whether this PyTorch has them: TorchInductor calls them, and no public function does."""
    return all(hasattr(torch.ops.mkldnn, name) for name in ("_linear_pointwise", "_reorder_linear_weight"))


def _in_order(weight: Tensor) -> Tensor:
    ordered: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), None)
    return ordered


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    y: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return y


def _in_order_product(x: Tensor, y: Tensor) -> Tensor:
    return _product(x, _in_order(y.t().contiguous()), None)
