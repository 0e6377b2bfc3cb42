"""Outputs of a Q-network and their gradient: by PyTorch's autograd for any network, by hand for a shipped MLP.

Small networks spend most of an update in autograd's bookkeeping and in launching kernels, not in arithmetic.
By hand, both states go through the online network in one pass of which only the first half is differentiated, and
dueling costs nothing: it is linear, so it is folded into the last layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Protocol

import torch
from torch import Tensor, nn

from apexrl.networks.encoders import ObservationEncoder, VectorEncoder
from apexrl.networks.q_network import NOTHING, Draw, QNetwork

Observation = Mapping[str, Tensor]


class Differentiable(Protocol):
    """A network whose parameters have attached gradients. It answers z, [B, n], with N > 1 outputs [B, n, N]."""

    def values(self, observation: Observation, draw: Draw = NOTHING) -> Tensor:
        """z, not to be differentiated."""

    def forward(
        self,
        observation: Observation,
        later: Observation | None = None,
        draw: Draw = NOTHING,
        later_draw: Draw = NOTHING,
    ) -> tuple[Tensor, Tensor | None]:
        """z to be differentiated, and that of ``later`` not to be; remembers what ``backward`` needs."""

    def backward(self, gradient: Tensor) -> None:
        """From ∂L/∂z of the last ``forward``, overwrite every parameter's ``.grad``."""

    def refresh(self) -> None:
        """Parameters were changed from outside: forget what was derived from them."""


def differentiable(network: QNetwork) -> Differentiable:
    """The quickest way to differentiate ``network``: by hand when it is an MLP without layer normalisation."""
    encoder, plain = network.encoder, network.embedding is None and not network.noise_size
    if plain and type(network) is QNetwork and type(encoder) is ObservationEncoder and len(encoder.encoders) == 1:
        (only,) = encoder.encoders
        if encoder.joint is None and type(only) is VectorEncoder and not only.layer_norm:
            return ByHand(network, only, encoder.names[0])
    return ByAutograd(network)


class ByAutograd:
    """Any network."""

    def __init__(self, network: QNetwork) -> None:
        self._network = network
        self._z: Tensor | None = None

    def values(self, observation: Observation, draw: Draw = NOTHING) -> Tensor:
        with torch.no_grad():
            z: Tensor = self._network(observation, draw)
        return z

    def forward(
        self,
        observation: Observation,
        later: Observation | None = None,
        draw: Draw = NOTHING,
        later_draw: Draw = NOTHING,
    ) -> tuple[Tensor, Tensor | None]:
        with torch.enable_grad():
            self._z = self._network(observation, draw)
        return self._z.detach(), None if later is None else self.values(later, later_draw)

    def backward(self, gradient: Tensor) -> None:
        assert self._z is not None, "backward() before forward()"
        for parameter in self._network.parameters():
            if parameter.grad is not None:
                parameter.grad.zero_()
        self._z.backward(gradient)  # type: ignore[no-untyped-call]
        self._z = None

    def refresh(self) -> None:
        """Nothing is derived."""


class ByHand:
    """Linear layers with ReLU between them, the last one plain or dueling; nothing in it is random.

    Dueling is z = [A, V]·C with the constant C = [I − 1/n; 1ᵀ] (Wang et al. 2016, equation 9), for each output by
    itself, so the last layer W is used as Cᵀ·W and its gradient goes back as C·∂(Cᵀ·W).
    """

    def __init__(self, network: QNetwork, encoder: VectorEncoder, name: str) -> None:
        self._name, self._encoder = name, encoder
        self._layers = [Layer(layer) for layer in (*encoder.layers, network.head) if isinstance(layer, nn.Linear)]
        self._outputs = network.outputs
        self._fold: Tensor | None = None  # C, [n + 1, n]
        if network.dueling:
            self._fold = _fold(network.actions, self._layers[-1].weight.device)
        self._last: tuple[Tensor, Tensor] | None = None  # the last layer's folded weight [n·N, inputs] and bias [n·N]
        self._inputs: list[Tensor] = []  # of every layer, [B, ·]

    def values(self, observation: Observation, draw: Draw = NOTHING) -> Tensor:
        with torch.no_grad():
            return self._shaped(self._pass(self._encoder.flatten(observation[self._name]))[-1])

    def forward(
        self,
        observation: Observation,
        later: Observation | None = None,
        draw: Draw = NOTHING,
        later_draw: Draw = NOTHING,
    ) -> tuple[Tensor, Tensor | None]:
        with torch.no_grad():
            self._last = None
            x = self._encoder.flatten(observation[self._name])
            rows = len(x)
            if later is not None:
                x = torch.cat((x, self._encoder.flatten(later[self._name])))
            *inputs, z = self._pass(x)
            z = self._shaped(z)
            if later is None:
                self._inputs = inputs
                return z, None
            self._inputs = [value[:rows] for value in inputs]
            return z[:rows], z[rows:]

    def backward(self, gradient: Tensor) -> None:
        assert self._last is not None, "backward() before forward()"
        with torch.no_grad():
            x, last = self._inputs[-1], self._layers[-1]
            gradient = gradient.flatten(1) if self._outputs > 1 else gradient
            if self._fold is None:
                last.differentiate(gradient, x)
            else:
                weight, bias = (
                    part.view(self._fold.shape[0], -1) for part in (last.weight_gradient, last.bias_gradient)
                )
                folded, n = torch.mm(gradient.t(), x), self._fold.shape[1]
                torch.mm(self._fold, folded.view(n, -1), out=weight)
                torch.mm(self._fold, gradient.sum(0).view(n, -1), out=bias)
            downstream = self._last[0]
            for layer, below in zip(reversed(self._layers[:-1]), reversed(self._inputs[:-1]), strict=True):
                gradient = torch.mm(gradient, downstream)
                gradient = torch.ops.aten.threshold_backward(gradient, x, 0.0)  # ReLU passes where it was positive
                x = below
                layer.differentiate(gradient, x)
                downstream = layer.weight

    def refresh(self) -> None:
        self._last = None

    def _shaped(self, z: Tensor) -> Tensor:
        """[B, n·N] as [B, n], or where N > 1 as [B, n, N]."""
        return z.view(len(z), -1, self._outputs) if self._outputs > 1 else z

    def _pass(self, x: Tensor) -> list[Tensor]:
        """The inputs of every layer and, last, z as [B, n·N]."""
        if self._last is None:
            self._last = self._folded()
        values = [x]
        for layer in self._layers[:-1]:
            x = torch.relu_(layer(x))
            values.append(x)
        weight, bias = self._last
        values.append(torch.addmm(bias, x, weight.t()))
        return values

    def _folded(self) -> tuple[Tensor, Tensor]:
        last = self._layers[-1]
        if self._fold is None:
            return last.weight, last.bias
        unfold, streams = self._fold.t(), self._fold.shape[0]
        weight = torch.mm(unfold, last.weight.view(streams, -1)).view(-1, last.weight.shape[1])
        return weight, torch.mm(unfold, last.bias.view(streams, -1)).flatten()


@cache
def _fold(actions: int, device: torch.device) -> Tensor:
    """C, [n + 1, n]: the same one for ever, as CUDA graphs read it."""
    centred = torch.eye(actions, device=device) - 1.0 / actions
    return torch.cat((centred, torch.ones(1, actions, device=device)))


class Layer:
    """A linear layer outside autograd: y = x·Wᵀ + b."""

    def __init__(self, linear: nn.Linear) -> None:
        self._linear = linear
        self.weight, self.bias = linear.weight.detach(), linear.bias.detach()  # the same memory

    def __call__(self, x: Tensor) -> Tensor:
        return self._linear.forward(x)

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
