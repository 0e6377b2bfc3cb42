"""The native sum tree against its NumPy twin."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_replay import find_prefix, powered

from apexrl import _native

values = st.floats(0.0, 1e6, allow_nan=False) | st.just(0.0)


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_sums_and_descents_equal_the_twin(data):
    size = data.draw(st.integers(1, 700))
    tree, leaves = _native.SumTree(size), np.zeros((size + 7) // 8 * 8)
    for _ in range(data.draw(st.integers(1, 6))):
        index = data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=40))
        value = data.draw(st.lists(values, min_size=len(index), max_size=len(index)))
        tree.set(index, value)
        for i, v in zip(index, value, strict=True):
            leaves[i] = v
    assert tree.check() == 0.0
    np.testing.assert_allclose(tree.total, leaves.sum(), rtol=1e-12)
    if tree.total == 0.0:
        return
    prefixes = np.asarray(data.draw(st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=50))) * tree.total
    for prefix, leaf in zip(prefixes, tree.find(prefixes.tolist()), strict=True):
        assert leaves[leaf] > 0.0
        cumulative = np.cumsum(leaves)
        slack = 1e-9 * tree.total
        assert cumulative[leaf] - leaves[leaf] - slack <= prefix <= cumulative[leaf] + slack


def test_prefixes_of_the_reference_sheet():
    """algorithms: p = [1, 2, 3, 4], α = 1."""
    tree = _native.SumTree(4)
    tree.set([0, 1, 2, 3], [1.0, 2.0, 3.0, 4.0])
    prefixes = [0.99, 1.0, 2.99, 3.0, 6.0]
    assert tree.find(prefixes) == [0, 1, 1, 2, 3]
    assert [find_prefix([1, 2, 3, 4], p) for p in prefixes] == [0, 1, 1, 2, 3]


def test_mass_never_lands_on_a_zero_leaf():
    tree = _native.SumTree(4096)
    rng = np.random.default_rng(0)
    index = rng.choice(4096, 37, replace=False)
    value = 10.0 ** rng.uniform(-12, 12, 37)  # heavy tails: rounding leads past the end of a node
    tree.set(index.tolist(), value.tolist())
    prefixes = np.concatenate([rng.random(20_000), [0.0, np.nextafter(1.0, 0.0)]]) * tree.total
    assert set(tree.find(prefixes.tolist())) <= set(index.tolist())


def test_sums_do_not_drift():
    tree, leaves = _native.SumTree(1000), np.zeros(1000)
    rng = np.random.default_rng(1)
    for _ in range(2000):
        index = rng.integers(0, 1000, 50)
        value = 10.0 ** rng.uniform(-8, 8, 50)
        tree.set(index.tolist(), value.tolist())
        leaves[index] = value
    assert tree.check() == 0.0
    tree.set(list(range(1000)), [0.0] * 1000)
    assert tree.total == 0.0  # a tree of running differences would keep a residue


@given(
    st.lists(st.floats(0, 1e6), min_size=1, max_size=64),
    st.floats(0, 1),
    st.sampled_from([0.0, 0.4, 0.5, 0.6, 0.9, 1.0, 2.0]),
)
@settings(deadline=None)
def test_powers_equal_numpy(priorities, eps, alpha):
    np.testing.assert_allclose(_native.powers(priorities, eps, alpha), powered(priorities, alpha, eps), rtol=1e-12)


@given(st.integers(0, 100_000), st.sampled_from([1, 8, 9, 700, 5000]))
@settings(max_examples=80, deadline=None)
def test_every_instruction_set_draws_the_same(seed, size):
    rng = np.random.default_rng(seed)
    tree = _native.SumTree(size)
    heavy = 10.0 ** rng.uniform(-12, 12, size) * (rng.random(size) < rng.uniform(0.01, 1.0))
    tree.set(list(range(size)), heavy.tolist())
    prefixes = (np.r_[rng.random(300), 0.0, np.nextafter(1.0, 0.0)] * tree.total).tolist()
    plain = tree.find(prefixes, version=0)
    assert plain == tree.find(prefixes)
    for version in (1, 2):
        assert tree.find(prefixes, version=version) in (None, plain)  # None: not on this processor


@given(st.integers(0, 100_000))
@settings(max_examples=40, deadline=None)
def test_the_least_leaf_follows_every_change(seed):
    rng = np.random.default_rng(seed)
    size = int(rng.integers(1, 600))
    tree, leaves = _native.SumTree(size), np.zeros(size)
    for _ in range(20):
        index = rng.integers(0, size, 10)
        value = rng.choice([0.0, 1.0, rng.random(), 1e-9], 10)
        tree.set(index.tolist(), value.tolist())
        leaves[index] = 0.0
        for i, v in zip(index, value, strict=True):
            leaves[i] = v
        assert tree.least == (leaves[leaves > 0].min() if (leaves > 0).any() else 0.0)


@given(st.binary(max_size=300) | st.binary(min_size=1500, max_size=4000))
def test_checksums_are_crc32c(data):
    assert _native.crc32c(b"123456789") == 0xE3069283  # RFC 3720's check value
    array = np.frombuffer(data, np.uint8)
    assert _native.crc32c(array) == _native.crc32c(array, by_table=True)
