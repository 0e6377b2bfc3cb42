"""Gradients that travel in fewer bytes: what is lost beside the exact ones."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from apexrl.roles.gradient_compression import Largest, Rounding, compression


def gradients(count: int, size: int = 500) -> list[Tensor]:
    random = torch.Generator().manual_seed(0)
    return [torch.randn(size, generator=random) ** 3 for _ in range(count)]


def relative(one: Tensor, other: Tensor) -> float:
    return float(torch.linalg.vector_norm(one - other) / torch.linalg.vector_norm(other))


def test_the_average_of_rounded_gradients_is_off_by_bfloat16s_rounding() -> None:
    own = gradients(3)
    parts = [torch.empty(500) for _ in own]
    rounding = [Rounding() for _ in own]
    for one, gradient, part in zip(rounding, own, parts, strict=True):
        one.fill([("q", gradient, part)])
        assert (part - gradient).abs().max() <= (gradient.abs() * 2**-8).max()
        assert one.error == pytest.approx(relative(part, gradient), rel=1e-4)
    assert 0.0 < relative(sum(parts) / 3, sum(own) / 3) < 2**-8  # type: ignore[operator]


def test_a_gradient_that_is_rounded_where_it_lies_stays_as_it_is_when_it_is_sent_again() -> None:
    (gradient,) = gradients(1)
    one = Rounding()
    one.fill([("q", gradient, gradient)])
    before, error = gradient.clone(), one.error
    for _ in range(60):
        one.fill([("q", gradient, gradient)])
    assert torch.equal(gradient, before)
    assert one.error == error > 0.0


def test_what_is_not_sent_is_added_to_the_next_gradient() -> None:
    one, part, total = Largest(0.02), torch.empty(500), torch.zeros(500)
    own = gradients(200)
    for gradient in own:
        one.fill([("q", gradient, part)])
        assert int(part.count_nonzero()) <= one.count(500) == 10
        total += part
        one.sent()
    exact = torch.stack(own).sum(0)
    left = one._left["q"]
    torch.testing.assert_close(total + left, exact, rtol=1e-4, atol=1e-2)
    assert relative(total, exact) < 0.75  # although a fiftieth of the values was sent each time


def test_a_gradient_that_was_not_sent_is_not_counted_twice() -> None:
    one, (first, second) = Largest(0.1), gradients(2)
    part, again = torch.empty(500), torch.empty(500)
    one.fill([("q", first, part)])
    one.sent()
    kept = one._left["q"].clone()
    for _ in range(3):  # the others are not there yet, or one was lost
        one.fill([("q", second, part)])
    assert torch.equal(one._left["q"], kept)
    twin = Largest(0.1)
    twin.fill([("q", first, again)])
    twin.sent()
    twin.fill([("q", second, again)])
    assert torch.equal(part, again)


def test_its_error_is_of_what_was_left_out() -> None:
    one, (gradient,) = Largest(0.1), gradients(1)
    part = torch.empty(500)
    one.fill([("q", gradient, part)])
    assert one.error == pytest.approx(relative(part, gradient), rel=1e-4)


def test_without_compression_there_is_none() -> None:
    assert compression("none", 0.01) is None
    assert compression("bf16", 0.01).count(7) == 7  # type: ignore[union-attr]
    assert compression("top-k", 0.001).count(10) == 1  # type: ignore[union-attr]
    assert math.isclose(Largest(0.5).count(1000), 500)
