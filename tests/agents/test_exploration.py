from __future__ import annotations

import numpy as np
import pytest

from apexrl.agents.exploration import epsilon_ladder, slot_epsilons, slot_order
from apexrl.errors import ConfigError


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


@pytest.mark.parametrize("slots", [1, 2, 3, 5, 8, 13, 64, 100])
def test_slots_are_permuted_so_that_every_beginning_is_spread(slots: int) -> None:
    order = slot_order(slots)
    assert sorted(order.tolist()) == list(range(slots))
    for taken in range(1, slots + 1):
        rungs = np.sort(order[:taken])
        gaps = np.diff(np.append(rungs, slots))
        assert rungs[0] == 0
        assert gaps.max() < 4 * slots / taken  # a bit-reversed order halves the widest gaps first


def test_the_order_of_eight_is_that_of_reversed_bits() -> None:
    assert slot_order(8).tolist() == [0, 4, 2, 6, 1, 5, 3, 7]
    assert slot_order(6).tolist() == [0, 4, 2, 1, 5, 3]


@pytest.mark.parametrize(("slots", "envs"), [(1, 1), (1, 8), (3, 1), (5, 4), (64, 2)])
def test_all_slots_together_hold_the_whole_ladder(slots: int, envs: int) -> None:
    held = [slot_epsilons(slot, slots, envs, 0.4, 7.0) for slot in range(slots)]
    ladder = epsilon_ladder(slots * envs, 0.4, 7.0)
    np.testing.assert_array_equal(np.sort(np.concatenate(held))[::-1], ladder)
    for mine in held:  # one environment in every part of the ladder
        for env in range(envs):
            assert mine[env] in ladder[env * slots : (env + 1) * slots]
    assert held[0].dtype == np.float32


def test_one_slot_holds_the_ladder_in_order() -> None:
    np.testing.assert_array_equal(slot_epsilons(0, 1, 8), epsilon_ladder(8))


@pytest.mark.parametrize("slot", [-1, 4])
def test_a_slot_beyond_the_ladder_is_refused(slot: int) -> None:
    with pytest.raises(ConfigError, match=f"actor {slot} has no rung of the ε ladder, which has 4"):
        slot_epsilons(slot, 4, 2)
