"""Noisy layers: the published numbers, and what their noise is."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from apexrl.networks import Draw, NoisyLinear, QNetwork, scaled
from apexrl.spec import ActionSpec, EnvSpec, Field

VECTOR = EnvSpec({"observation": Field((4,), "float32")}, ActionSpec(n=3))
PIXELS = EnvSpec({"observation": Field((10, 10, 4), "bool")}, ActionSpec(n=3))


def noise(layer_or_network: NoisyLinear | QNetwork, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return scaled(torch.randn(layer_or_network.noise_size, generator=generator))


def test_f() -> None:
    torch.testing.assert_close(scaled(torch.tensor([-4.0, 0.25, 0.0])), torch.tensor([-2.0, 0.5, 0.0]))


def test_the_first_weights() -> None:
    torch.manual_seed(0)
    layer = NoisyLinear(64, 200, 0.5)
    assert (layer.weight_sigma == 0.0625).all()
    assert (layer.bias_sigma == 0.0625).all()
    for mean in (layer.weight, layer.bias):
        assert 0.11 < float(mean.detach().abs().max()) <= 0.125
    assert float(layer.weight.detach().std()) == pytest.approx(0.125 / 3**0.5, rel=0.03)


def test_the_layer_is_its_formula() -> None:
    layer = NoisyLinear(3, 2, 0.5)
    x, epsilon = torch.randn(5, 3), noise(layer)
    layer.noise = epsilon
    at_input, at_output = epsilon[:3], epsilon[3:]
    weight = layer.weight + layer.weight_sigma * at_output[:, None] * at_input[None, :]
    bias = layer.bias + layer.bias_sigma * at_output
    torch.testing.assert_close(layer(x), x @ weight.T + bias)
    layer.noise = None
    torch.testing.assert_close(layer(x), x @ layer.weight.T + layer.bias)


@pytest.mark.parametrize("between", [(), (3,)], ids=["rows", "fractions of rows"])
def test_noise_of_each_row_is_a_matrix_for_each_row(between: tuple[int, ...]) -> None:
    layer = NoisyLinear(7, 4, 0.5)
    with torch.no_grad():
        for sigma in (layer.weight_sigma, layer.bias_sigma):
            sigma.uniform_(-1.0, 1.0)
    x, rows = torch.randn(5, *between, 7), torch.stack([noise(layer, seed) for seed in range(5)])
    expected = []
    for row, epsilon in zip(x, rows, strict=True):
        layer.noise = epsilon
        expected.append(layer(row))
    layer.noise = rows
    torch.testing.assert_close(layer(x), torch.stack(expected))


def test_the_noise_has_the_published_scale() -> None:
    """Var y = σ²·(Σ x²·E f² + 1)·E f² with E f(ε)² = E|ε| = √(2/π)."""
    layer = NoisyLinear(16, 4, 0.5)
    x = torch.ones(1, 16)
    answers = []
    with torch.no_grad():
        for seed in range(4000):
            layer.noise = noise(layer, seed)
            answers.append(layer(x))
    spread = torch.cat(answers)
    second = (2 / np.pi) ** 0.5
    expected = 0.125 * (second * (16 * second + 1)) ** 0.5
    np.testing.assert_allclose(spread.std(dim=0), expected, rtol=0.06)
    layer.noise = None
    np.testing.assert_allclose(spread.mean(dim=0), layer(x)[0].detach(), atol=4 * expected / 4000**0.5)


def test_sigma_learns() -> None:
    layer = NoisyLinear(3, 2, 0.5)
    layer.noise = noise(layer)
    layer(torch.randn(5, 3)).square().sum().backward()
    for parameter in layer.parameters():
        assert parameter.grad is not None
        assert (parameter.grad != 0).all()


@pytest.mark.parametrize("spec", [VECTOR, PIXELS], ids=["vector", "pixels"])
def test_a_network_is_noisy_in_its_head_and_still_without_noise(spec: EnvSpec) -> None:
    network = QNetwork(spec, (8,), True, outputs=5, noisy_sigma=0.5, image_units=16)
    shape = spec.observation["observation"].shape
    observation = {"observation": torch.ones(6, *shape)}
    noisy = [name for name, layer in network.named_modules() if isinstance(layer, NoisyLinear)]
    assert sorted(noisy) == (["head"] if spec is VECTOR else ["head", "streams", "value"])
    one, two = (network(observation, Draw(noise(network, seed))) for seed in (1, 2))
    assert not torch.allclose(one, two)
    torch.testing.assert_close(one, network(observation, Draw(noise(network, 1))))
    still = network(observation)
    assert not torch.allclose(still, one)
    torch.testing.assert_close(still, network(observation))


def test_noise_is_no_part_of_the_weights() -> None:
    network = QNetwork(VECTOR, (8,), True, noisy_sigma=0.5)
    network({"observation": torch.zeros(1, 4)}, Draw(noise(network)))
    assert not list(network.buffers())
    assert {name.rpartition(".")[2] for name in network.state_dict()} == {
        "weight",
        "bias",
        "weight_sigma",
        "bias_sigma",
    }
