"""Q-values with their gradient: by PyTorch's autograd for any network, by hand for a plain MLP.

Small networks spend most of an update in autograd's bookkeeping and in launching kernels, not in arithmetic.
By hand, both states go through the online network in one pass of which only the first half is differentiated, and
dueling costs nothing: it is linear, so it is folded into the last layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor, nn

from apexrl.networks.encoders import VectorEncoder
from apexrl.networks.q_network import QNetwork

Observation = Mapping[str, Tensor]


class Differentiable(Protocol):
    """Q-values of a network whose parameters have attached gradients."""

    def values(self, observation: Observation) -> Tensor:
        """Q [B, n], not to be differentiated."""
        ...

    def forward(self, observation: Observation, later: Observation | None = None) -> tuple[Tensor, Tensor | None]:
        """Q [B, n] to be differentiated, and Q of ``later`` not to be; remembers what ``backward`` needs."""
        ...

    def backward(self, gradient: Tensor) -> None:
        """From ∂L/∂Q [B, n] of the last ``forward``, overwrite every parameter's ``.grad``."""
        ...

    def refresh(self) -> None:
        """Parameters were changed from outside: forget what was derived from them."""
        ...


def differentiable(network: QNetwork) -> Differentiable:
    """The quickest way to differentiate ``network``: by hand when it is a plain MLP."""
    encoders = network.encoder.encoders
    if len(encoders) == 1 and isinstance(encoders[0], VectorEncoder):
        return ByHand(network, encoders[0], network.encoder.names[0])
    return ByAutograd(network)


class ByAutograd:
    """Any network."""

    def __init__(self, network: QNetwork) -> None:
        self._network = network
        self._q: Tensor | None = None

    def values(self, observation: Observation) -> Tensor:
        with torch.no_grad():
            q: Tensor = self._network(observation)
        return q

    def forward(self, observation: Observation, later: Observation | None = None) -> tuple[Tensor, Tensor | None]:
        with torch.enable_grad():
            self._q = self._network(observation)
        return self._q.detach(), None if later is None else self.values(later)

    def backward(self, gradient: Tensor) -> None:
        assert self._q is not None, "backward() before forward()"
        for parameter in self._network.parameters():
            if parameter.grad is not None:
                parameter.grad.zero_()
        self._q.backward(gradient)  # type: ignore[no-untyped-call]
        self._q = None

    def refresh(self) -> None:
        """Nothing is derived."""


class ByHand:
    """Linear layers with ReLU between them, the last one plain or dueling.

    Dueling is Q = [A, V]·C with the constant C = [I − 1/n; 1ᵀ] (Wang et al. 2016, equation 9), so the last layer W is
    used as Cᵀ·W and its gradient goes back as C·∂(Cᵀ·W).
    """

    def __init__(self, network: QNetwork, encoder: VectorEncoder, name: str) -> None:
        self._name, self._encoder = name, encoder
        self._layers = [Layer(layer) for layer in (*encoder.layers, network.head) if isinstance(layer, nn.Linear)]
        self._fold: Tensor | None = None  # C, [n + 1, n]
        if network.dueling:
            n, device = network.actions, network.head.weight.device
            centred = torch.eye(n, device=device) - 1.0 / n
            self._fold = torch.cat((centred, torch.ones(1, n, device=device)))
        self._last: tuple[Tensor, Tensor] | None = None  # the last layer's folded weight [n, inputs] and bias [n]
        self._inputs: list[Tensor] = []  # of every layer, [B, ·]

    def values(self, observation: Observation) -> Tensor:
        with torch.no_grad():
            return self._pass(self._encoder.flatten(observation[self._name]))[-1]

    def forward(self, observation: Observation, later: Observation | None = None) -> tuple[Tensor, Tensor | None]:
        with torch.no_grad():
            self._last = None
            x = self._encoder.flatten(observation[self._name])
            rows = len(x)
            if later is not None:
                x = torch.cat((x, self._encoder.flatten(later[self._name])))
            *inputs, q = self._pass(x)
            if later is None:
                self._inputs = inputs
                return q, None
            self._inputs = [value[:rows] for value in inputs]
            return q[:rows], q[rows:]

    def backward(self, gradient: Tensor) -> None:
        assert self._last is not None, "backward() before forward()"
        with torch.no_grad():
            x, last = self._inputs[-1], self._layers[-1]
            if self._fold is None:
                last.differentiate(gradient, x)
            else:
                torch.mm(self._fold, torch.mm(gradient.t(), x), out=last.weight_gradient)
                torch.mv(self._fold, gradient.sum(0), out=last.bias_gradient)
            downstream = self._last[0]
            for layer, below in zip(reversed(self._layers[:-1]), reversed(self._inputs[:-1]), strict=True):
                gradient = torch.mm(gradient, downstream)
                gradient = torch.ops.aten.threshold_backward(gradient, x, 0.0)  # ReLU passes where it was positive
                x = below
                layer.differentiate(gradient, x)
                downstream = layer.weight

    def refresh(self) -> None:
        self._last = None

    def _pass(self, x: Tensor) -> list[Tensor]:
        """The inputs of every layer and, last, Q."""
        if self._last is None:
            last = self._layers[-1]
            self._last = last.weight, last.bias
            if self._fold is not None:
                unfold = self._fold.t()
                self._last = torch.mm(unfold, last.weight), torch.mv(unfold, last.bias)
        values = [x]
        for layer in self._layers[:-1]:
            x = torch.relu_(torch.addmm(layer.bias, x, layer.weight.t()))
            values.append(x)
        weight, bias = self._last
        values.append(torch.addmm(bias, x, weight.t()))
        return values


class Layer:
    """A linear layer outside autograd: y = x·Wᵀ + b."""

    def __init__(self, linear: nn.Linear) -> None:
        self._linear = linear
        self.weight, self.bias = linear.weight.detach(), linear.bias.detach()  # the same memory

    @property
    def weight_gradient(self) -> Tensor:
        return _attached(self._linear.weight)

    @property
    def bias_gradient(self) -> Tensor:
        return _attached(self._linear.bias)

    def differentiate(self, gradient: Tensor, x: Tensor) -> None:
        """From ∂L/∂y [B, outputs] and the inputs [B, inputs]: ∂L/∂W = ∂yᵀ·x and ∂L/∂b = Σ_B ∂y."""
        torch.mm(gradient.t(), x, out=self.weight_gradient)
        torch.sum(gradient, 0, out=self.bias_gradient)


def _attached(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None, "no gradient is attached: see FlatParameters.attach_gradient"
    return parameter.grad
