"""The ensemble and its gradient against MLPs of their own."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from apexrl.networks.ensemble import EVERY, Dropout, Ensemble, Members

BATCH, INPUTS = 9, 7


def make(outputs: int, hidden: tuple[int, ...] = (16, 12)) -> tuple[Ensemble, Tensor]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Ensemble(2, (INPUTS, *hidden, outputs)).double(), torch.randn(BATCH, INPUTS, dtype=torch.float64)


def plainly(ensemble: Ensemble, x: Tensor, member: int) -> Tensor:
    last = len(ensemble.weights) - 1
    for place, (weight, bias) in enumerate(zip(ensemble.weights, ensemble.biases, strict=True)):
        x = x @ weight[member] + bias[member]
        x = torch.relu(x) if place < last else x
    return x


@pytest.mark.parametrize("outputs", [1, 5])
@pytest.mark.parametrize("hidden", [(), (16,), (16, 12)])
@pytest.mark.parametrize("asked", [EVERY, slice(1), [1], [1, 0]], ids=str)
def test_members_are_mlps_and_so_are_their_gradients(outputs: int, hidden: tuple[int, ...], asked: Members) -> None:
    ensemble, x = make(outputs, hidden)
    x.requires_grad_()
    members = asked if isinstance(asked, list) else range(2)[asked]
    found, expected = ensemble(x, asked), torch.stack([plainly(ensemble, x, member) for member in members])
    torch.testing.assert_close(found, expected)
    wanted = [x, *ensemble.parameters()]
    gradients = [torch.autograd.grad(y.sin().sum(), wanted, allow_unused=True) for y in (found, expected)]
    for one, two in zip(*gradients, strict=True):
        torch.testing.assert_close(one, two)


@pytest.mark.parametrize("outputs", [1, 5])
@pytest.mark.parametrize("chosen", ["all", "the smaller", "none of the first"])
def test_frozen_members_pass_the_gradient_on_and_take_none(outputs: int, chosen: str) -> None:
    ensemble, x = make(outputs)
    x.requires_grad_()

    def loss(frozen: bool) -> Tensor:
        y = ensemble(x, frozen=frozen).sin()
        return {"all": y, "the smaller": y.amin(dim=0), "none of the first": y[1]}[chosen].sum()

    frozen = torch.autograd.grad(loss(frozen=True), [x, *ensemble.parameters()], allow_unused=True)
    (expected,) = torch.autograd.grad(loss(frozen=False), [x])
    torch.testing.assert_close(frozen[0], expected)
    assert all(gradient is None for gradient in frozen[1:])


def test_layer_norm_stands_before_relu_and_each_member_has_its_own() -> None:
    ensemble, x = Ensemble(2, (INPUTS, 16, 5), layer_norm=True), torch.randn(BATCH, INPUTS)
    with torch.no_grad():
        ensemble.scales[0].normal_()
        ensemble.shifts[0].normal_()
    for k, found in enumerate(ensemble(x)):
        hidden = x @ ensemble.weights[0][k] + ensemble.biases[0][k]
        hidden = torch.nn.functional.layer_norm(hidden, (16,), ensemble.scales[0][k, 0], ensemble.shifts[0][k, 0])
        expected = torch.relu(hidden) @ ensemble.weights[1][k] + ensemble.biases[1][k]
        torch.testing.assert_close(found, expected)
    torch.testing.assert_close(ensemble(x, [1]), ensemble(x)[1:])


def test_dropout_keeps_the_mean_and_draws_from_its_generator() -> None:
    x = torch.ones(40_000)
    one, two = (Dropout(0.2, torch.Generator().manual_seed(3)) for _ in range(2))
    found = one(x)
    assert torch.equal(found, two(x))
    assert not torch.equal(found, one(x))
    assert set(found.unique().tolist()) == {0.0, 1.25}
    assert float(found.mean()) == pytest.approx(1.0, abs=0.02)


def test_without_gradient_nothing_is_kept() -> None:
    ensemble, x = make(1)
    with torch.no_grad():
        assert not ensemble(x).requires_grad


def test_layers_begin_within_their_bound() -> None:
    ensemble, _ = make(5)
    for weight, bias in zip(ensemble.weights, ensemble.biases, strict=True):
        bound = weight.shape[1] ** -0.5
        assert 0.8 * bound < float(weight.detach().abs().max()) <= bound
        assert float(bias.detach().abs().max()) <= bound
    assert not torch.equal(ensemble.weights[0][0], ensemble.weights[0][1])
