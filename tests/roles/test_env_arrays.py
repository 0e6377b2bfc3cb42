from __future__ import annotations

import numpy as np
import pytest

from apexrl.roles.env_arrays import EnvArrays, zeroed


def test_zeroed_rows_are_of_copies() -> None:
    given = np.arange(6).reshape(3, 2)
    given.flags.writeable = False
    np.testing.assert_array_equal(zeroed({"h": given}, np.array([True, False, True]))["h"], [[0, 0], [2, 3], [0, 0]])
    np.testing.assert_array_equal(zeroed({"h": given}, np.array([1]))["h"], [[0, 1], [0, 0], [4, 5]])
    np.testing.assert_array_equal(given, np.arange(6).reshape(3, 2))


@pytest.mark.parametrize("which", [None, np.array([2, 0])])
def test_rows_are_put_taken_and_cleared(which: np.ndarray | None) -> None:
    rows = EnvArrays(3)
    rows.put(which, {"h": np.array([5, 7, 9])[:2] if which is not None else np.array([7, 6, 5])})
    rows.clear(which, np.array([True, False] if which is not None else [False, False, True]))
    np.testing.assert_array_equal(rows.take(np.array([0, 2]))["h"], [7, 0])
