from __future__ import annotations

import numpy as np
import pytest

from apexrl.errors import ConfigError
from apexrl.exploration import epsilon_ladder


def test_ladder_of_eight_is_the_papers() -> None:
    expected = [0.4, 0.16, 0.064, 0.0256, 0.01024, 0.004096, 0.0016384, 0.00065536]
    ladder = epsilon_ladder(8)
    assert ladder.dtype == np.float32
    np.testing.assert_allclose(ladder, expected, rtol=1e-6)


def test_one_environment_gets_epsilon_itself() -> None:
    np.testing.assert_allclose(epsilon_ladder(1, epsilon=0.3), [0.3], rtol=1e-6)


def test_alpha_zero_is_flat_and_epsilon_zero_is_greedy() -> None:
    np.testing.assert_allclose(epsilon_ladder(3, 0.2, 0.0), [0.2, 0.2, 0.2], rtol=1e-6)
    assert not epsilon_ladder(3, 0.0).any()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((0,), "environments"),
        ((2, 1.5), "epsilon is 1.5"),
        ((2, 0.4, -1.0), "epsilon_alpha"),
        ((2, 0.4, np.inf), "epsilon_alpha"),
    ],
)
def test_values_out_of_range_are_named(arguments: tuple[float, ...], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        epsilon_ladder(*arguments)  # type: ignore[arg-type]
