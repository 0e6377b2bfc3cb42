"""SimbaV2's networks against their formulas in NumPy, and what the projection leaves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from apexrl.networks.hyperspherical import EXPANSION, SHIFT, Dense, HypersphericalLayers, HypersphericalPolicy, project
from apexrl.spec import ActionSpec, Array, EnvSpec, Field

INPUTS, UNITS, BLOCKS, OUTPUTS, ROWS = 4, 6, 2, 5, 7


def unit(x: Array) -> Array:
    return np.asarray(x / np.linalg.norm(x, axis=-1, keepdims=True))


def dense(layer: Dense, k: int) -> Array:
    return np.asarray(layer.weight[k].detach().double())


def scaler(module: Any, k: int, initial: float, scale: float) -> Array:
    """The authors': the parameter, which begins as ``scale``, times initial / scale."""
    return np.asarray(module.scaler[k, 0].detach().double()) * (initial / scale)


def as_published(layers: HypersphericalLayers, x: Array, k: int) -> Array:
    """scale_rl/agents/simbaV2 of the authors' code, for member ``k``."""
    size = (2 / UNITS) ** 0.5
    y = unit(np.concatenate((x, np.full((len(x), 1), SHIFT)), axis=1)) @ dense(layers.embedding, k)
    y = unit(y * scaler(layers.scaler, k, size, size))
    for module in layers.blocks:
        block: Any = module
        inner = size / EXPANSION**0.5
        z = y @ dense(block.first, k) * scaler(block.scaler, k, inner, inner)
        z = unit((np.maximum(z, 0) + 1e-8) @ dense(block.second, k))
        y = unit(y + scaler(block.alpha, k, 1 / (BLOCKS + 1), UNITS**-0.5) * (z - y))
    answers = []
    for module in layers.heads:
        head: Any = module
        z = y @ dense(head.first, k) * scaler(head.scaler, k, 1.0, 1.0)
        answers.append(z @ dense(head.second, k) + np.asarray(head.bias[k, 0].detach()))
    return np.concatenate(answers, axis=1)


def make(heads: int = 1) -> tuple[HypersphericalLayers, torch.Tensor]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = HypersphericalLayers(3, (INPUTS, *[UNITS] * BLOCKS, heads * OUTPUTS), heads)
        with torch.no_grad():
            for name, parameter in layers.named_parameters():
                if "scaler" in name or "bias" in name:
                    parameter.mul_(1.0 + 0.5 * torch.rand(parameter.shape)).add_(0.1 * torch.randn(parameter.shape))
        return layers, torch.randn(ROWS, INPUTS)


@pytest.mark.parametrize("heads", [1, 2])
def test_answers_are_the_published_networks(heads: int) -> None:
    layers, x = make(heads)
    expected = [as_published(layers, x.double().numpy(), k) for k in range(3)]
    np.testing.assert_allclose(layers(x).detach().numpy(), np.stack(expected), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(
        layers(x, [2, 0]).detach().numpy(), np.stack([expected[2], expected[0]]), rtol=1e-4, atol=1e-5
    )
    np.testing.assert_allclose(layers(x, slice(1)).detach().numpy(), expected[0][None], rtol=1e-4, atol=1e-5)


def test_layers_begin_orthogonal_and_of_length_one() -> None:
    layers = HypersphericalLayers(2, (INPUTS, *[UNITS] * BLOCKS, OUTPUTS))
    for module in layers.modules():
        if isinstance(module, Dense):
            torch.testing.assert_close(module.weight.norm(dim=1), torch.ones(module.weight[:, 0].shape))
    square: Any = layers.heads[0]
    torch.testing.assert_close(square.first.weight[1].T @ square.first.weight[1], torch.eye(UNITS), atol=1e-5, rtol=0)
    block: Any = layers.blocks[0]
    torch.testing.assert_close(block.alpha.at(slice(None), False), torch.full((2, 1, UNITS), 1 / (BLOCKS + 1)))


def test_the_projection_keeps_directions_and_everything_else() -> None:
    layers, _ = make()
    before = {name: parameter.detach().clone() for name, parameter in layers.named_parameters()}
    with torch.no_grad():
        for parameter in layers.parameters():
            parameter.mul_(3.0)
    project(layers)
    for name, parameter in layers.named_parameters():
        factor = 1.0 if name.endswith("weight") else 3.0
        torch.testing.assert_close(parameter.detach(), factor * before[name])


def test_the_length_of_the_inputs_is_not_lost() -> None:
    layers, x = make()
    assert not torch.allclose(layers(x), layers(2.0 * x), atol=1e-3)


def test_frozen_members_pass_the_gradient_on_and_take_none() -> None:
    layers, x = make()
    x.requires_grad_()
    frozen = torch.autograd.grad(layers(x, frozen=True).sin().sum(), [x, *layers.parameters()], allow_unused=True)
    (expected,) = torch.autograd.grad(layers(x).sin().sum(), [x])
    torch.testing.assert_close(frozen[0], expected)
    assert all(gradient is None for gradient in frozen[1:])


def test_the_policys_deviation_lies_between_its_bounds() -> None:
    low, high = np.full(2, -1, np.float32), np.ones(2, np.float32)
    spec = EnvSpec({"observation": Field((INPUTS,), "float32")}, ActionSpec((2,), "float32", low=low, high=high))
    policy = HypersphericalPolicy(spec, (UNITS,), 4)
    seen = {"observation": torch.randn(ROWS, INPUTS)}
    raw = policy.layers(seen["observation"])[0]
    found = policy(seen)
    torch.testing.assert_close(found[:, :2], raw[:, :2])
    torch.testing.assert_close(found[:, 2:], -10 + 6 * (1 + torch.tanh(raw[:, 2:])))
    with torch.no_grad():
        policy.layers.heads[1].bias.fill_(99.0)  # type: ignore[union-attr, operator]
    torch.testing.assert_close(policy(seen)[:, 2:], torch.full((ROWS, 2), 2.0))
