"""Weights as bfloat16: which lose digits, and how many."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from apexrl.links.rounded_weights import Rounded, lengthened, may_round, shortened


@given(arrays(np.float32, (7, 5), elements=st.floats(width=32, allow_nan=True, allow_infinity=True)))
def test_values_are_rounded_as_torch_rounds_them(values: np.ndarray[tuple[int, int], np.dtype[np.float32]]) -> None:
    wanted = torch.from_numpy(values).to(torch.bfloat16).to(torch.float32).numpy()
    np.testing.assert_array_equal(lengthened(shortened(values)), wanted)


def test_what_was_rounded_stays_so_and_the_source_is_not_changed() -> None:
    values = np.random.default_rng(1).standard_normal((20, 30)).astype(np.float32).T
    before = values.copy()
    once = lengthened(shortened(values))
    np.testing.assert_array_equal(values, before)
    np.testing.assert_array_equal(lengthened(shortened(once)), once)
    np.testing.assert_allclose(once, values, rtol=2**-8)


@pytest.mark.parametrize(
    ("name", "shape", "dtype", "rounded"),
    [
        ("body/0.weight", (64, 64), np.float32, True),
        ("critic/weights.0", (2, 128, 4), np.float32, True),
        ("body/0.weight", (4, 4), np.float32, False),
        ("critic/biases.0", (1, 1, 4096), np.float32, False),
        ("normalizer/mean", (64, 64), np.float32, False),
        ("counts", (64, 64), np.int32, False),
    ],
)
def test_large_matrices_alone_lose_digits(name: str, shape: tuple[int, ...], dtype: type, rounded: bool) -> None:
    array = np.full(shape, 3, dtype)
    assert may_round(name, array) == rounded
    assert Rounded.of({name: array}).short == ({name} if rounded else set())


def test_weights_come_back_whole_unless_they_are_rounded() -> None:
    weights = {"w": np.full((32, 32), 1.001, np.float32), "b": np.full(32, 1.001, np.float32)}
    whole, rounded = (Rounded.of(weights, rounds).weights() for rounds in (False, True))
    assert whole.keys() == rounded.keys() == weights.keys()
    for name, array in weights.items():
        np.testing.assert_array_equal(whole[name], array)
    assert (rounded["w"] == 1.0).all()
    np.testing.assert_array_equal(rounded["b"], weights["b"])
