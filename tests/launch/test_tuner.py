"""The auto-tuner on simulated throughput. All figures are of fixed seeds; ``benchmarks/tuner/run.py`` has many more."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from simulated_throughput import DRIFTS, SHAPES, share, simulate

from apexrl.launch.throughput_model import ThroughputModel
from apexrl.launch.tuner import Tuner

CASES = [
    ("contention", 0.10, "none"),
    ("plateau", 0.15, "to and fro"),
    ("cliff, from below", 0.10, "slower"),
    ("cliff, from above", 0.15, "none"),
    ("crowd", 0.05, "slower"),
    ("ridge", 0.10, "to and fro"),
    ("shared", 0.10, "slower"),
]


@pytest.mark.parametrize(("name", "noise", "drift"), CASES)
def test_it_ends_near_the_optimum(name: str, noise: float, drift: str) -> None:
    shape = SHAPES[name]
    shape = shape._replace(windows=min(100, shape.windows))  # half of what two counts get in the benchmark
    shares = [share(shape, simulate(shape, noise, drift, seed).best) for seed in range(4)]
    assert sum(reached >= 0.95 for reached in shares) >= 3, shares
    assert min(shares) >= 0.85


@pytest.mark.parametrize("drift", DRIFTS)
def test_where_nothing_matters_it_stays(drift: str) -> None:
    """Ties do not drift: GA3C's rule keeps every change that was not worse, and wanders."""
    changes = 0
    for seed in range(10):
        rng = np.random.default_rng(seed)
        tuner = Tuner({"actor": (1, 32)}, {"actor": 8}, seed)
        for window in range(40):
            tuner.tell(DRIFTS[drift](window / 40) * math.exp(0.1 * rng.standard_normal()))
        changes += sum(decision.verdict == "adopted" for decision in tuner.decisions)
    assert changes <= 24  # of 400 windows; GA3C's rule makes and keeps some 130


def test_the_same_seed_makes_the_same_decisions() -> None:
    shape = SHAPES["cliff, from below"]
    first, again, other = (simulate(shape, 0.1, "slower", seed).decisions for seed in (3, 3, 4))
    assert first == again
    assert first != other


def test_it_settles_rests_and_looks_again() -> None:
    tuner = simulate(SHAPES["crowd"]._replace(windows=120), 0.05, "none", 1)
    verdicts = [decision.verdict for decision in tuner.decisions]
    settled = [i for i, verdict in enumerate(verdicts) if verdict == "settled"]
    again = verdicts.index("looks again")
    assert again - settled[0] == 30
    assert verdicts[settled[0] + 1 : again] == ["rests"] * 29
    assert {decision.setting["actor"] for decision in tuner.decisions[settled[0] + 1 : again + 1]} == {1}
    assert len(settled) > 1  # it settles again,
    assert settled[1] - again < settled[0]  # sooner, as it remembers what it knew,
    assert "looks again" not in verdicts[settled[1] : settled[1] + 59]  # and for twice as long


def test_a_surface_that_changes_is_found_out() -> None:
    rng = np.random.default_rng(5)
    tuner = Tuner({"actor": (1, 32)}, {"actor": 4}, 5)
    for window in range(300):
        best = 8 if window < 60 else 20
        rate = -abs(math.log2(tuner.next()["actor"] / best)) * 0.4 + 0.05 * rng.standard_normal()
        tuner.tell(100.0 * math.exp(rate))
        if window == 59:
            assert 7 <= tuner.best["actor"] <= 9
    assert 17 <= tuner.best["actor"] <= 24


def test_steps_from_the_best_are_small() -> None:
    for name in ("contention", "threads"):
        decisions = simulate(SHAPES[name]._replace(windows=40), 0.1, "none", 2).decisions
        for before, after in pairwise(decisions):
            for count, at_best in zip(after.setting.values(), before.best.values(), strict=True):
                assert at_best / 2 - 0.5 <= count <= 2 * at_best


def test_bounds_are_kept_and_counts_have_their_names() -> None:
    shape = SHAPES["ridge"]
    for decision in simulate(shape, 0.15, "none", 1).decisions:
        for setting in (decision.setting, decision.best):
            assert setting.keys() == shape.bounds.keys()
            assert all(least <= setting[name] <= most for name, (least, most) in shape.bounds.items())


def test_a_limit_holds_from_then_on() -> None:
    tuner = Tuner({"actor": (1, 32)}, {"actor": 6}, 1)
    for window in range(60):
        if window == 10:
            assert max(decision.setting["actor"] for decision in tuner.decisions) > 5
            tuner.limit("actor", 5)
            assert tuner.decisions[-1].verdict == "limited"
            assert tuner.best["actor"] <= 5
        assert window < 10 or tuner.next()["actor"] <= 5
        tuner.tell(float(tuner.next()["actor"]))
    assert tuner.best == {"actor": 5}
    with pytest.raises(ValueError, match="its least is 1"):
        tuner.limit("actor", 0)


def test_one_choice_is_no_choice() -> None:
    tuner = Tuner({"actor": (1, 1)}, {"actor": 1}, 1)
    for _ in range(10):
        tuner.tell(5.0)
    assert tuner.best == {"actor": 1}
    assert tuner.settled


def test_a_window_without_any_throughput_is_only_a_bad_one() -> None:
    tuner = Tuner({"actor": (1, 8)}, {"actor": 2}, 1)
    for _ in range(60):
        count = tuner.next()["actor"]
        tuner.tell(0.0 if count > 4 else float(count))
    assert tuner.best == {"actor": 4}
    stopped = Tuner({"actor": (1, 8)}, {"actor": 2}, 1)
    for _ in range(12):
        stopped.tell(0.0)
    assert stopped.best == {"actor": 2}


@pytest.mark.parametrize("rate", [-1.0, math.nan, math.inf])
def test_what_is_no_throughput_is_refused(rate: float) -> None:
    tuner = Tuner({"actor": (1, 8)}, {"actor": 2}, 1)
    with pytest.raises(ValueError, match="finite number, 0 or more"):
        tuner.tell(rate)
    assert tuner.decisions == []


@pytest.mark.parametrize(
    ("bounds", "start"),
    [
        ({"actor": (1, 8)}, {"actor": 9}),
        ({"actor": (0, 8)}, {"actor": 1}),
        ({"actor": (1, 8)}, {"actors": 1}),
        ({}, {}),
    ],
)
def test_a_start_out_of_bounds_is_refused(bounds: dict[str, tuple[int, int]], start: dict[str, int]) -> None:
    with pytest.raises(ValueError):
        Tuner(bounds, start, 1)


def windows_on(surface: ThroughputModel, rng: np.random.Generator, noise: float, slope: float, count: int = 60) -> None:
    for i in range(count):
        n = 2 ** (i % 4)
        surface.add((n,), math.exp(slope * math.log2(n) + noise * rng.standard_normal()))


@pytest.mark.parametrize("noise", [0.02, 0.08, 0.3])
def test_the_noise_is_estimated(noise: float) -> None:
    surface = ThroughputModel(1)
    windows_on(surface, np.random.default_rng(1), noise, slope=0.3)
    assert noise / 2 <= surface.scales.noise <= 2 * noise


def test_differences_are_known_as_well_as_they_were_measured() -> None:
    """Over 100 sets of windows, the true difference lies within 2 standard deviations 95 times in 100, or nearly."""
    within = []
    for seed in range(100):
        surface = ThroughputModel(1)
        windows_on(surface, np.random.default_rng(seed), 0.1, slope=0.1, count=24)
        means, covariance = surface.posterior(np.array([[2], [4]]))
        spread = math.sqrt(covariance[0, 0] + covariance[1, 1] - 2 * covariance[0, 1])
        within.append(abs(means[1] - means[0] - 0.1) < 2 * spread)
    assert 0.88 <= np.mean(within) <= 1.0


def test_a_level_that_falls_is_not_taken_for_the_setting() -> None:
    surface = ThroughputModel(1)
    rng = np.random.default_rng(1)
    for i in range(60):  # more and more actors while all becomes slower: 1 % a window
        surface.add((4 + i // 15,), math.exp(-0.01 * i + 0.02 * rng.standard_normal()))
    for i in range(60, 72):
        surface.add((4 + 3 * (i % 2),), math.exp(-0.01 * i + 0.02 * rng.standard_normal()))
    means, _ = surface.posterior(np.array([[4], [7]]))
    assert abs(means[1] - means[0]) < 0.05


def test_a_window_in_which_the_machine_was_busy_elsewhere_counts_little() -> None:
    calm, spoilt = ThroughputModel(1), ThroughputModel(1)
    for surface in (calm, spoilt):
        rng = np.random.default_rng(2)
        for i in range(40):
            stalled = surface is spoilt and i == 21
            surface.add((4 + i % 2,), (0.2 if stalled else 1.0) * math.exp(0.05 * rng.standard_normal()))
    differences = [float(np.diff(surface.posterior(np.array([[4], [5]]))[0])[0]) for surface in (calm, spoilt)]
    assert abs(differences[1] - differences[0]) < 0.04  # its share of 20 windows would be log(5) / 20 = 0.08


def test_settings_in_one_proportion_vouch_for_one_another() -> None:
    """A ridge, four of one count to one of the other, measured at its lower half: what lies beside it is not believed
    to be as good, and what lies further along it is."""
    surface = ThroughputModel(2)
    rng = np.random.default_rng(1)
    for i in range(80):
        servers, octaves = 1 + i % 3, (-1, 0, 1)[i // 3 % 3]
        rate = 10.0 * 2.0 ** -abs(octaves)  # a proportion twice or half as large gives half
        surface.add((int(4 * servers * 2.0**octaves), servers), rate * math.exp(0.05 * rng.standard_normal()))
    means, _ = surface.posterior(np.array([[24, 6], [12, 6], [48, 6]]))
    assert surface.scales.stretch > 2.0
    assert min(means[0] - means[1], means[0] - means[2]) > 0.3  # the true difference is log 2 = 0.69
