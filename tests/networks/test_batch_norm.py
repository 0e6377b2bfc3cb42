"""Batch renormalisation against the formulas of its paper, and what CrossQ asks of it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from apexrl.networks.batch_norm import (
    D_MAX,
    EPS,
    MOMENTUM,
    R_MAX,
    WARM_UP,
    BatchRenorm,
    NormedLayers,
    commit,
    in_training,
)


def rows(seed: int = 0, count: int = 2, batch: int = 64, features: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, batch, features, generator=generator) * 3.0 + 2.0


def test_at_first_it_is_batch_normalisation() -> None:
    norm, x = BatchRenorm(2, 3).train(), rows()
    y = norm(x)
    for member in range(2):
        expected = torch.nn.functional.batch_norm(x[member], None, None, training=True, eps=EPS)
        torch.testing.assert_close(y[member].detach(), expected, rtol=1e-4, atol=1e-5)


def test_after_the_warm_up_it_renormalises() -> None:
    """Algorithm 1, with r and d cut off at either end for the features behind the first, and its gradient with them
    constant."""
    norm, x = BatchRenorm(1, 3).double().train(), rows(1, 1, 32, 3).double().requires_grad_()
    norm.batches.fill_(WARM_UP)
    norm.mean.copy_(torch.tensor([[[1.0, 900.0, -900.0]]]))
    norm.variance.copy_(torch.tensor([[[4.0, 0.01, 1e4]]]))
    y = norm(x)
    deviation = (x.var(dim=1, correction=0, keepdim=True) + EPS).sqrt()
    mean = x.mean(dim=1, keepdim=True)
    running = (norm.variance + EPS).sqrt()
    r, d = (deviation / running).detach(), ((mean - norm.mean) / running).detach()
    r[..., 1:] = torch.tensor([R_MAX, 1.0 / R_MAX])
    d[..., 1:] = torch.tensor([-D_MAX, D_MAX])
    expected = (x - mean) / deviation * r + d
    torch.testing.assert_close(y, expected)
    found, wanted = (torch.autograd.grad(z.sin().sum(), [x])[0] for z in (y, expected))
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("count", "batch", "features"), [(1, 1, 4), (2, 33, 5), (10, 512, 7), (1, 256, 256)])
@pytest.mark.parametrize("warm", [False, True])
def test_gradients_by_hand_are_those_of_autograd(seed: int, count: int, batch: int, features: int, warm: bool) -> None:
    """Of the inputs, the scale and the shift, where all three are random and r and d within their limits and not."""
    draw = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=draw, dtype=torch.float64)

    norm = BatchRenorm(count, features).double().train()
    norm.batches.fill_(WARM_UP * warm)
    norm.mean.copy_(3.0 * normal(count, 1, features))
    norm.variance.copy_(normal(count, 1, features).exp() ** 2)
    with torch.no_grad():
        norm.scale.copy_(normal(count, 1, features))
        norm.shift.copy_(normal(count, 1, features))
    x = (normal(count, batch, features) + 1.0).requires_grad_()
    downstream = normal(count, batch, features)
    y = norm(x)
    mean = x.mean(dim=1, keepdim=True)
    deviation = (x.var(dim=1, correction=0, keepdim=True) + EPS).sqrt()
    running = (norm.variance + EPS).sqrt()
    r = (deviation / running).clamp(1.0 / R_MAX, R_MAX).detach() if warm else torch.ones_like(running)
    d = ((mean - norm.mean) / running).clamp(-D_MAX, D_MAX).detach() if warm else torch.zeros_like(running)
    expected = ((x - mean) / deviation * r + d) * norm.scale + norm.shift
    torch.testing.assert_close(y, expected)
    learning = [x, norm.scale, norm.shift]
    found, wanted = (torch.autograd.grad((z * downstream).sum(), learning) for z in (y, expected))
    torch.testing.assert_close(found, wanted)


def test_statistics_wait_for_the_commit() -> None:
    norm, x = BatchRenorm(2, 3).train(), rows()
    before = {name: buffer.clone() for name, buffer in norm.named_buffers()}
    norm(x)
    norm(torch.full_like(x, torch.nan))
    assert all(torch.equal(before[name], buffer) for name, buffer in norm.named_buffers())
    norm(x)
    norm.commit()
    torch.testing.assert_close(norm.mean, MOMENTUM * x.mean(dim=1, keepdim=True))
    variance = x.var(dim=1, correction=0, keepdim=True)
    torch.testing.assert_close(norm.variance, 1.0 + MOMENTUM * (variance - 1.0))
    assert float(norm.batches) == 1.0
    after = norm.mean.clone()
    norm.commit()  # nothing was seen since
    assert torch.equal(norm.mean, after)


def test_in_evaluation_rows_do_not_depend_on_one_another() -> None:
    norm = BatchRenorm(2, 3).eval()
    norm.mean.fill_(2.0)
    norm.variance.fill_(9.0)
    x = rows()
    y = norm(x)
    torch.testing.assert_close(y, (x - 2.0) / (9.0 + EPS) ** 0.5)
    torch.testing.assert_close(norm(x[:, :1]), y[:, :1])


def test_networks_train_only_within_the_block() -> None:
    layers = NormedLayers(2, (3, 8, 1)).eval()
    x = rows(count=1)[0]
    with pytest.raises(RuntimeError, match="must match"), in_training(layers):
        layers(x[:, :2])
    assert not layers.training
    with in_training(layers):
        trained = layers(x)
    assert not torch.allclose(trained, layers(x))
    commit(layers)
    assert [float(norm.batches) for norm in layers.norms] == [1.0, 1.0]


@pytest.mark.parametrize("training", [True, False])
def test_frozen_layers_hand_the_gradient_on_and_take_none(training: bool) -> None:
    layers, x = NormedLayers(2, (3, 8, 1)).train(training), rows(count=1)[0].requires_grad_()
    (expected,) = torch.autograd.grad(layers(x).sum(), [x])
    values = layers(x, frozen=True)
    values.sum().backward()
    torch.testing.assert_close(x.grad, expected)
    assert all(parameter.grad is None for parameter in layers.parameters())
    torch.testing.assert_close(layers(x, slice(1)), values[:1])
