"""SimbaV2's networks: features and weight vectors of length 1 (Lee et al. 2025, arXiv 2502.15280, section 4).

Every layer's columns, the weights of one output each, have length 1 at first and are scaled back to it by ``project``
after every update. Sizes of vectors are then learned by ``Scaler`` alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from apexrl.networks.ensemble import EVERY, Members
from apexrl.networks.trunk import Trunk
from apexrl.spec import EnvSpec

# All of the authors' code.
SHIFT = 3.0  # a constant beside the inputs, which keeps their length after these are scaled to length 1
EXPANSION = 4  # of a block's middle layer
EPS = 1e-8
LOG_STD_MIN, LOG_STD_MAX = -10.0, 2.0


class Scaler(nn.Module):
    """x·s, with a learned s for each feature of each of K members.

    Args:
        features: per row.
        initial: s at first.
        scale: the parameter at first, of which s is ``initial / scale`` times: large steps of s where this is small.
    """

    def __init__(self, count: int, features: int, initial: float = 1.0, scale: float = 1.0) -> None:
        super().__init__()
        self.scaler = nn.Parameter(torch.full((count, 1, features), scale))
        self._factor = initial / scale

    def at(self, members: Members, frozen: bool) -> Tensor:
        """s of the ``members``, [K, 1, features]."""
        return self._factor * _of(self.scaler, members, frozen)


class Dense(nn.Module):
    """K linear maps without bias, [K, inputs, outputs], whose columns are orthogonal as far as there are inputs."""

    def __init__(self, count: int, inputs: int, outputs: int) -> None:
        super().__init__()
        made = [nn.init.orthogonal_(torch.empty(inputs, outputs)) for _ in range(count)]
        self.weight = nn.Parameter(torch.stack(made))
        self.project()

    @torch.no_grad()
    def project(self) -> None:
        """Scale every column to length 1."""
        self.weight.copy_(normalize(self.weight, dim=1, eps=EPS))

    def forward(self, x: Tensor, members: Members, frozen: bool) -> Tensor:
        """[K, B, inputs] of the ``members`` -> [K, B, outputs]."""
        return torch.bmm(x, _of(self.weight, members, frozen))


class Block(nn.Module):
    """x ← unit(x + α·(MLP(x) − x)), where the MLP answers a unit vector too: a step on the sphere, with a learned α
    for each feature (paper, equations 10 and 11).

    Args:
        blocks: of the whole network, of which α begins as 1/(blocks + 1).
    """

    def __init__(self, count: int, units: int, blocks: int) -> None:
        super().__init__()
        size = math.sqrt(2.0 / units) / math.sqrt(EXPANSION)
        self.first = Dense(count, units, EXPANSION * units)
        self.scaler = Scaler(count, EXPANSION * units, size, size)
        self.second = Dense(count, EXPANSION * units, units)
        self.alpha = Scaler(count, units, 1.0 / (blocks + 1), units**-0.5)

    def forward(self, x: Tensor, members: Members, frozen: bool) -> Tensor:
        """[K, B, units], rows of length 1 -> the same."""
        y = self.first(x, members, frozen) * self.scaler.at(members, frozen)
        y = self.second(torch.relu(y) + EPS, members, frozen)  # ε: a zero vector has no direction
        return _unit(x + self.alpha.at(members, frozen) * (_unit(y) - x))


class Head(nn.Module):
    """Linear, scaled, linear again with a bias."""

    def __init__(self, count: int, units: int, outputs: int) -> None:
        super().__init__()
        self.first, self.scaler, self.second = (
            Dense(count, units, units),
            Scaler(count, units),
            Dense(count, units, outputs),
        )
        self.bias = nn.Parameter(torch.zeros(count, 1, outputs))

    def forward(self, x: Tensor, members: Members, frozen: bool) -> Tensor:
        """[K, B, units] -> [K, B, outputs]."""
        y = self.first(x, members, frozen) * self.scaler.at(members, frozen)
        answers: Tensor = self.second(y, members, frozen) + _of(self.bias, members, frozen)
        return answers


class HypersphericalLayers(nn.Module):
    """K networks at once: an embedding, a ``Block`` for each hidden size, and heads of as many outputs each.

    Args:
        count: K.
        sizes: inputs, units of each block (all the same), outputs.
        heads: that divide the outputs among them.
    """

    def __init__(self, count: int, sizes: Sequence[int], heads: int = 1) -> None:
        super().__init__()
        inputs, *hidden, outputs = sizes
        units, size = hidden[0], math.sqrt(2.0 / hidden[0])
        self.embedding = Dense(count, inputs + 1, units)
        self.scaler = Scaler(count, units, size, size)
        self.blocks = nn.ModuleList(Block(count, units, len(hidden)) for _ in hidden)
        self.heads = nn.ModuleList(Head(count, units, outputs // heads) for _ in range(heads))
        self.count = count

    def forward(self, x: Tensor, members: Members = EVERY, frozen: bool = False) -> Tensor:
        """float32 [B, inputs], the same for all; returns [K, B, outputs], or of the ``members`` that are asked.

        ``frozen``: the gradient goes to ``x`` alone.
        """
        x = _unit(nn.functional.pad(x, (0, 1), value=SHIFT))
        asked = len(range(self.count)[members]) if isinstance(members, slice) else len(members)
        y = self.embedding(x.expand(asked, *x.shape), members, frozen) * self.scaler.at(members, frozen)
        y = _unit(y)
        for block in self.blocks:
            y = block(y, members, frozen)
        return torch.cat([head(y, members, frozen) for head in self.heads], dim=2)


class HypersphericalPolicy(nn.Module):
    """As ``actor_critic.Policy``, of μ and log σ, each from a head of its own; log σ lies between −10 and 2 by a tanh.
    Critics are ``actor_critic.Critics`` with ``HypersphericalLayers``."""

    def __init__(
        self, spec: EnvSpec, hidden: Sequence[int], outputs: int, image_units: int = 512, network: str = ""
    ) -> None:
        super().__init__()
        self.trunk = Trunk(spec, (), image_units, network)
        self.layers = HypersphericalLayers(1, (self.trunk.features, *hidden, outputs), heads=2)

    def forward(self, observation: Mapping[str, Tensor]) -> Tensor:
        """name -> [B, (stack,) *shape]; returns μ and log σ, float32 [B, outputs]."""
        mean, raw = self.layers(self.trunk(observation))[0].chunk(2, dim=1)
        log_std = LOG_STD_MIN + 0.5 * (LOG_STD_MAX - LOG_STD_MIN) * (1.0 + torch.tanh(raw))
        return torch.cat((mean, log_std), dim=1)


def project(network: nn.Module) -> None:
    """Scale the columns of all its ``Dense`` layers to length 1 (paper, section 4.4)."""
    for module in network.modules():
        if isinstance(module, Dense):
            module.project()


def _unit(x: Tensor) -> Tensor:
    """Rows of length 1, [..., features]."""
    return normalize(x, dim=-1, eps=EPS)


def _of(parameter: nn.Parameter, members: Members, frozen: bool) -> Tensor:
    some = parameter if members == EVERY else parameter[members]
    return some.detach() if frozen else some
