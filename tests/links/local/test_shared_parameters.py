"""Parameters in shared memory: the same inline, between handles, and between processes."""

from __future__ import annotations

import multiprocessing
import pickle
import threading

import numpy as np
import pytest
from numpy.typing import NDArray

from apexrl.links.local.shared_parameters import SharedParameters

SIZES = {"policy/online": 40, "policy/optimizer/steps": 1, "value/online": 16}


def values(start: float = 0.0) -> dict[str, NDArray[np.float32]]:
    return {name: np.arange(start, start + size, dtype=np.float32) for name, size in SIZES.items()}


@pytest.fixture(params=[True, False], ids=["shared", "inline"])
def parameters(request: pytest.FixtureRequest) -> SharedParameters:
    return SharedParameters(SIZES, shared=request.param)


def test_vectors_stand_apart_on_lines_of_their_own(parameters: SharedParameters) -> None:
    assert {name: array.shape for name, array in parameters.arrays.items()} == {n: (s,) for n, s in SIZES.items()}
    starts = [array.ctypes.data for array in parameters.arrays.values()]
    assert all((start - starts[0]) % 64 == 0 for start in starts)
    assert all(array.dtype == np.float32 and not array.any() for array in parameters.arrays.values())
    for number, array in enumerate(parameters.arrays.values(), start=1):
        array[:] = number
    assert [set(array.tolist()) for array in parameters.arrays.values()] == [{1.0}, {2.0}, {3.0}]


def test_who_waits_goes_on_when_they_are_filled(parameters: SharedParameters) -> None:
    assert not parameters.filled
    assert not parameters.wait(0.0)
    assert not parameters.wait(0.02)
    parameters.fill(values() | {"of somebody else": np.ones(3, np.float32)})
    assert parameters.filled
    assert parameters.wait(0.0)
    assert all(np.array_equal(parameters.arrays[name], array) for name, array in values().items())


def test_a_second_filling_after_a_death_counts_too(parameters: SharedParameters) -> None:
    next(iter(parameters.arrays.values()))[:] = 7.0  # all that its predecessor got done
    assert not parameters.filled
    parameters.fill(values(3.0))
    assert all(np.array_equal(parameters.arrays[name], array) for name, array in values(3.0).items())


def test_a_waiting_thread_is_woken() -> None:
    parameters = SharedParameters(SIZES)
    seen: list[bool] = []
    thread = threading.Thread(target=lambda: seen.append(parameters.wait(20.0)))
    thread.start()
    parameters.fill(values())
    thread.join(timeout=10.0)
    assert seen == [True]


def test_a_missing_vector_is_an_error_and_nobody_goes_on(parameters: SharedParameters) -> None:
    with pytest.raises(KeyError, match="value/online"):
        parameters.fill({name: array for name, array in values().items() if name != "value/online"})
    assert not parameters.filled


def _add(parameters: SharedParameters) -> None:
    if parameters.wait(20.0):
        for array in parameters.arrays.values():
            array += 1.0


def test_processes_see_one_anothers_changes() -> None:
    parameters = SharedParameters(SIZES)
    other: SharedParameters = pickle.loads(pickle.dumps(parameters))
    process = multiprocessing.get_context("spawn").Process(target=_add, args=(parameters,))
    process.start()
    parameters.fill(values())
    process.join(timeout=120.0)
    assert process.exitcode == 0
    for handle in (parameters, other):
        assert all(np.array_equal(handle.arrays[name], array + 1.0) for name, array in values().items())
