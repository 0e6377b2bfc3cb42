from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from apexrl import _native
from apexrl.networks.distributions import (
    LOG_STD_MAX,
    LOG_STD_MIN,
    LONG,
    Categorical,
    Distribution,
    Gaussian,
    Score,
    held,
    log_softmax,
    log_std_bounds,
)
from apexrl.networks.policy_value import PolicyValue
from apexrl.spec import ActionSpec, EnvSpec, Field

RNG = np.random.default_rng
KINDS: dict[str, Distribution] = {
    "one choice": Categorical((4,), vector=False),
    "one choice in a vector": Categorical((3,), vector=True),
    "several choices": Categorical((2, 5, 3), vector=True),
    "numbers": Gaussian(2),
}


def outputs_of(policy: Distribution, rows: int, seed: int = 0, scale: float = 1.0) -> NDArray[np.float32]:
    return (scale * RNG(seed).standard_normal((rows, policy.outputs))).astype(np.float32)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_drawn_has_the_density_that_the_learner_computes(kind: str) -> None:
    policy = KINDS[kind]
    outputs = outputs_of(policy, 50, scale=2.0)
    action, log_prob = policy.sample(outputs, RNG(1))
    assert (log_prob.shape, log_prob.dtype) == ((50,), np.float32)
    score = policy.score(torch.from_numpy(outputs).double(), torch.from_numpy(action))
    np.testing.assert_allclose(log_prob, score.log_prob, atol=2e-5)
    again, _ = policy.sample(outputs, RNG(1))
    np.testing.assert_array_equal(action, again)
    assert (policy.sample(outputs, RNG(2))[0] != action).any()


@pytest.mark.parametrize("kind", KINDS)
def test_pytorchs_distributions_say_the_same(kind: str) -> None:
    policy = KINDS[kind]
    outputs = outputs_of(policy, 20, seed=3)
    action, _ = policy.sample(outputs, RNG(4))
    score = policy.score(torch.from_numpy(outputs), torch.from_numpy(action))
    if isinstance(policy, Gaussian):
        mean, log_std = torch.from_numpy(outputs).chunk(2, dim=1)
        normal: Any = torch.distributions.Normal(mean, log_std.exp())
        log_prob = normal.log_prob(torch.from_numpy(action)).sum(dim=1)
        entropy = normal.entropy().sum(dim=1)
    else:
        nvec = {"one choice": (4,), "one choice in a vector": (3,), "several choices": (2, 5, 3)}[kind]
        each: Any = [
            torch.distributions.Categorical(logits=part) for part in torch.split(torch.from_numpy(outputs), nvec, 1)
        ]
        columns = torch.from_numpy(action).view(20, -1).unbind(dim=1)
        log_prob = sum(one.log_prob(a) for one, a in zip(each, columns, strict=True))
        entropy = sum(one.entropy() for one in each)
    torch.testing.assert_close(score.log_prob, log_prob)
    torch.testing.assert_close(score.entropy, entropy)


def test_choices_come_as_often_as_their_probabilities_say() -> None:
    logits = np.log(np.array([0.5, 0.0001, 0.2, 0.2999], np.float32)) + 3.0
    action, log_prob = Categorical((4,), vector=False).sample(np.tile(logits, (40_000, 1)), RNG(0))
    counts = np.bincount(action, minlength=4) / 40_000
    np.testing.assert_allclose(counts, [0.5, 0.0001, 0.2, 0.2999], atol=0.01)
    np.testing.assert_allclose(np.exp(log_prob[action == 0]), 0.5, rtol=1e-4)


def test_what_cannot_be_is_never_drawn() -> None:
    logits = np.array([[-np.inf, 0.0, -1e30, 0.0, -200.0]], np.float32)
    action, log_prob = Categorical((5,), vector=False).sample(np.repeat(logits, 2_000, axis=0), RNG(0))
    assert set(action.tolist()) == {1, 3}
    np.testing.assert_allclose(log_prob, np.log(0.5), rtol=1e-6)


def drawn(logits: NDArray[np.float32], uniform: NDArray[np.float64]) -> tuple[NDArray[Any], NDArray[np.float32]]:
    """The twin of the native draw, for one choice [B, n]."""
    apart = logits - logits.max(axis=1, keepdims=True)
    mass = np.exp(apart).cumsum(axis=1, dtype=np.float64)
    chosen = (mass[:, :-1] <= (uniform * mass[:, -1])[:, None]).sum(axis=1)
    log_prob = apart[np.arange(len(logits)), chosen] - np.log(mass[:, -1])
    edge = np.abs(mass - (uniform * mass[:, -1])[:, None]).min(axis=1)  # where rounding decides
    return np.where(edge < 1e-6, -1, chosen), log_prob.astype(np.float32)


@given(st.lists(st.integers(1, 6), min_size=1, max_size=4), st.integers(0, 20), st.integers(0, 2**32 - 1))
def test_the_native_draw_does_what_its_twin_does(nvec: list[int], rows: int, seed: int) -> None:
    outputs = (RNG(seed).standard_normal((rows, sum(nvec))) * RNG(seed).choice([0.1, 1.0, 30.0])).astype(np.float32)
    action, log_prob = Categorical(nvec, vector=True).sample(outputs, RNG(seed))
    uniform = RNG(seed).random((len(nvec), rows))
    expected = np.zeros(rows)
    clear = np.ones(rows, np.bool_)
    for i, part in enumerate(np.split(outputs, np.cumsum(nvec)[:-1], axis=1)):
        chosen, own = drawn(part, uniform[i])
        clear &= chosen >= 0
        np.testing.assert_array_equal(action[chosen >= 0, i], chosen[chosen >= 0])
        expected += own
    np.testing.assert_allclose(log_prob[clear], expected[clear], rtol=1e-5, atol=1e-5)


def test_a_slice_and_other_floats_are_taken_as_they_are_meant() -> None:
    outputs = outputs_of(KINDS["one choice"], 20)
    expected = KINDS["one choice"].sample(outputs, RNG(5))
    wide = np.concatenate((outputs, outputs), axis=1)
    for same in (wide[:, :4], outputs.astype(np.float64)):
        np.testing.assert_array_equal(KINDS["one choice"].sample(same, RNG(5)).action, expected.action)


def test_a_row_of_nan_takes_the_first_choice_and_says_so() -> None:
    outputs = np.array([[0.0, np.nan, 0.0], [0.0, 1.0, 2.0]], np.float32)
    action, log_prob = Categorical((3,), vector=False).sample(outputs, RNG(0))
    assert action[0] == 0
    assert np.isnan(log_prob[0])
    assert np.isfinite(log_prob[1])


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        ({"logits": np.zeros((3, 4), np.float32)}, "logits"),
        ({"logits": np.zeros((3, 5), np.float64)}, "logits"),
        ({"logits": np.zeros((3, 10), np.float32)[:, ::2]}, "logits"),
        ({"nvec": (5, 0)}, "nvec"),
        ({"nvec": (2, 2)}, "nvec"),
        ({"nvec": (2**63, 2**63 + 5)}, "nvec"),
        ({"uniform": np.zeros((2, 4))}, "uniform"),
        ({"uniform": np.zeros((3, 2))}, "uniform"),
        ({"chosen": np.zeros((3, 1), np.int64)}, "chosen"),
        ({"chosen": np.zeros((3, 2))}, "chosen"),
        ({"log_prob": np.zeros(3)}, "log_prob"),
        ({"log_prob": np.zeros(3, np.int32)}, "log_prob"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(wrong: dict[str, Any], what: str) -> None:
    fitting: dict[str, Any] = {
        "logits": np.zeros((3, 5), np.float32),
        "nvec": (2, 3),
        "uniform": np.zeros((2, 3)),
        "chosen": np.zeros((3, 2), np.int64),
        "log_prob": np.zeros(3, np.float32),
    }
    _native.draw_choices(**fitting)
    with pytest.raises(ValueError, match=what):
        _native.draw_choices(**{**fitting, **wrong})


def test_choices_are_independent() -> None:
    policy = Categorical((2, 2), vector=True)
    action, _ = policy.sample(np.zeros((20_000, 4), np.float32), RNG(0))
    assert action.shape == (20_000, 2)
    left, right = np.asarray(action, np.float64).T - 0.5
    assert abs((left * right).mean()) < 0.01


def test_numbers_have_the_mean_and_deviation_that_are_said() -> None:
    outputs = np.tile(np.array([0.5, -2.0, np.log(0.3), np.log(2.0)], np.float32), (40_000, 1))
    action, _ = Gaussian(2).sample(outputs, RNG(0))
    assert action.dtype == np.float32
    np.testing.assert_allclose(action.mean(axis=0), [0.5, -2.0], atol=0.05)
    np.testing.assert_allclose(action.std(axis=0), [0.3, 2.0], rtol=0.02)


@pytest.mark.parametrize(("least_std", "least"), [(0.0, LOG_STD_MIN), (1e-9, LOG_STD_MIN), (0.05, np.log(0.05))])
def test_deviations_are_held_between_bounds(least_std: float, least: float) -> None:
    policy = Gaussian(1, least_std)
    far = np.array([[0.0, 30.0], [0.0, -30.0]], np.float32)
    held = np.array([[0.0, LOG_STD_MAX], [0.0, least]], np.float32)
    one, two = policy.sample(far, RNG(0)), policy.sample(held, RNG(0))
    np.testing.assert_array_equal(one.action, two.action)
    np.testing.assert_array_equal(one.log_prob, two.log_prob)
    action = torch.from_numpy(one.action)
    torch.testing.assert_close(
        policy.score(torch.from_numpy(far), action), policy.score(torch.from_numpy(held), action), rtol=0, atol=0
    )
    noise = torch.ones(2, 1)
    torch.testing.assert_close(policy.chosen(torch.from_numpy(far), noise), held_std(held), rtol=1e-6, atol=0)


def held_std(outputs: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.exp(outputs[:, 1:]))


@pytest.mark.parametrize("kind", KINDS)
def test_the_mode_is_the_likeliest(kind: str) -> None:
    policy = KINDS[kind]
    outputs = outputs_of(policy, 30)
    mode = policy.mode(outputs)
    best = policy.score(torch.from_numpy(outputs), torch.from_numpy(mode)).log_prob
    for seed in range(10):
        drawn, log_prob = policy.sample(outputs, RNG(seed))
        assert (drawn.shape, drawn.dtype) == (mode.shape, mode.dtype)
        assert (best.numpy() >= log_prob - 1e-5).all()


@pytest.mark.parametrize("n", [1, 2, LONG - 1, LONG, 40])
def test_softmaxes_by_columns_are_those_by_rows(n: int) -> None:
    logits = 3.0 * torch.randn(7, n, generator=torch.Generator().manual_seed(n))
    logits[:, 1:] = torch.where(torch.arange(1, n) % 3 == 0, -1e30, logits[:, 1:])  # as of masked actions
    weights = torch.randn(7, n, generator=torch.Generator().manual_seed(n + 1))
    weights[logits < -1e29] = 0.0

    def found(function: Any) -> tuple[torch.Tensor, torch.Tensor]:
        x = logits.clone().requires_grad_()
        y = function(x)
        (y * weights).sum().backward()
        assert x.grad is not None
        return y.detach(), x.grad

    torch.testing.assert_close(found(log_softmax), found(lambda x: torch.log_softmax(x, dim=1)))
    action, policy = logits.argmax(dim=1), Categorical((n,), vector=False)
    log_p = torch.log_softmax(logits, dim=1)
    entropy = -(log_p.exp() * log_p).sum(dim=1)
    torch.testing.assert_close(policy.score(logits, action), Score(log_p.gather(1, action[:, None])[:, 0], entropy))
    torch.testing.assert_close(policy.log_probs(logits), log_p)


def test_log_probabilities_of_combinations_are_sums_of_those_of_choices() -> None:
    outputs = torch.randn(7, 5, generator=torch.Generator().manual_seed(0))
    first, second = torch.log_softmax(outputs[:, :2], 1), torch.log_softmax(outputs[:, 2:], 1)
    wanted = torch.stack([first[:, i] + second[:, j] for i in range(2) for j in range(3)], dim=1)
    torch.testing.assert_close(Categorical((2, 3), vector=True).log_probs(outputs), wanted)


@pytest.mark.parametrize(("x", "back"), [(-3.0, -1.0), (3.0, 1.0), (0.5, 1.0), (0.5, -1.0)])
def test_a_number_out_of_bounds_can_be_learned_back(x: float, back: float) -> None:
    for gradient, passed in ((back, back), (-back, -back if abs(x) < 1.0 else 0.0)):
        number = torch.tensor([x], requires_grad=True)
        value = held(number, -1.0, 1.0)
        assert value.item() == max(-1.0, min(x, 1.0))
        value.backward(torch.tensor([gradient]))
        assert number.grad is not None
        assert number.grad.item() == passed


def test_a_deviation_below_its_bound_is_free_to_grow() -> None:
    policy, spec = Gaussian(2, 0.1), EnvSpec({"observation": Field((3,), "float32")}, ActionSpec(2))
    network = PolicyValue(spec, (4,), 2, 2, free_start=-3.0, free_bounds=log_std_bounds(0.1))
    seen = {"observation": torch.zeros(5, 7, 3)}
    for towards, gradient in ((-1.0, -1.0), (1.0, 0.0)):  # more entropy, and less
        outputs = network.unroll(seen)[0].flatten(0, 1)
        network.zero_grad()
        (towards * policy.score(outputs, torch.zeros(35, 2)).entropy.mean()).backward()
        assert network.free is not None
        assert network.free.grad is not None
        np.testing.assert_allclose(network.free.grad.numpy(), [gradient, gradient], rtol=1e-5)
