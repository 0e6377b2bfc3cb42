"""Running normalisation: what the statistics are, and that an agent learns alike whatever the environment's units."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from signal_runs import Game, Given, act, asks, copied, same
from torch._subclasses.fake_tensor import FakeTensorMode

from apexrl.agents import AGENTS
from apexrl.agents.normalizer import GROUP, Normalizer
from apexrl.agents.transition_batch import Transitions
from apexrl.config import AgentConfig
from apexrl.errors import NonFiniteError
from apexrl.spec import ActionSpec, EnvSpec, Field

ON: dict[str, Any] = {"normalize_observations": True, "normalize_returns": True}
CPU = torch.device("cpu")
ONE_OF_2 = ActionSpec(n=2)


def spec_of(stack: int = 1) -> EnvSpec:
    fields = {"observation/place": Field((3,), "float64"), "observation/eye": Field((8, 8), "uint8")}
    return EnvSpec(fields, ONE_OF_2, stack)


def transitions(rows: NDArray[Any], reward: Any = 1.0, discount: Any = 0.9) -> Transitions:
    count = len(rows)
    seen = {"observation/place": torch.from_numpy(rows), "observation/eye": torch.zeros(count, 8, 8)}
    numbers = (torch.from_numpy(np.broadcast_to(value, count).astype(np.float32)) for value in (reward, discount))
    return Transitions(seen, seen, torch.zeros(count, dtype=torch.int64), *numbers, torch.ones(count))


@pytest.fixture(scope="module", params=AGENTS)
def game(request: pytest.FixtureRequest) -> Any:
    game = Game(request.param, "vector", asks(request.param)[0], **ON)
    yield game
    game.close()


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([1, 7, 64]), st.floats(-1e4, 1e4), st.sampled_from([1e-3, 1.0, 1e4]))
def test_statistics_are_those_of_all_rows_seen(seed: int, rows: int, middle: float, width: float) -> None:
    rng = np.random.default_rng(seed)
    normalizer = Normalizer(spec_of(), AgentConfig(**ON), CPU)
    batches = [rng.normal(middle, width, (rows, 3)) for _ in range(90)]
    for updates, batch in enumerate(batches):
        normalizer.step(normalizer.groups(transitions(batch), updates))
    every = np.concatenate(batches)
    found = normalizer.observation({"observation/place": torch.from_numpy(every)})["observation/place"].numpy()
    rounding = 1e-6 * abs(middle) / width  # of float32, in which networks compute
    assert abs(found.mean()) < 1e-3 + 10 * rounding
    if rounding < 1e-3:  # the mean that deviations are taken from was itself being learned
        assert found.std(axis=0) == pytest.approx(1.0, rel=0.05 if rows > 1 else 0.2)


@pytest.mark.parametrize("changes", [{}, ON])
def test_codes_are_divided_by_their_maximum(changes: dict[str, Any]) -> None:
    fields = spec_of().observation | {
        "observation/codes": Field((7, 7, 3), "uint8"),
        "observation/marks": Field((7, 7, 3), "bool"),
        "observation/bytes": Field((5,), "uint8"),
    }
    seen = {
        name: torch.from_numpy(np.full((2, *field.shape), 1 if field.dtype == "bool" else 4, field.dtype))
        for name, field in fields.items()
    }
    spec = EnvSpec(fields, ONE_OF_2)
    scaled = Normalizer(spec, AgentConfig(byte_maximum=8, **changes), CPU).observation(seen)
    for name in ("observation/eye", "observation/codes", "observation/bytes"):
        assert (scaled[name] == 127).all(), "a half of 255"
    assert scaled["observation/marks"] is seen["observation/marks"]
    for config in (AgentConfig(**changes), AgentConfig(byte_maximum=8, network="my.encoders:Board", **changes)):
        as_they_are = Normalizer(spec, config, CPU).observation(seen)
        assert as_they_are["observation/codes"] is seen["observation/codes"]


def test_codes_are_scaled_in_batches_too() -> None:
    batch = transitions(np.zeros((4, 3)))
    eye = torch.full((4, 8, 8), 4, dtype=torch.uint8)
    seen = {**batch.observation, "observation/eye": eye}
    batch = batch._replace(observation=seen, next_observation=seen)
    scaled = Normalizer(spec_of(), AgentConfig(byte_maximum=8), CPU).transitions(batch)
    for side in (scaled.observation, scaled.next_observation):
        assert (side["observation/eye"] == 127).all()
        assert not side["observation/eye"].is_floating_point(), "encoders scale floats where they lie"


def test_frames_of_a_stack_are_scaled_alike_and_only_the_newest_is_measured() -> None:
    normalizer = Normalizer(spec_of(stack=2), AgentConfig(**ON), CPU)
    rows = np.random.default_rng(0).normal(5.0, 2.0, (400, 2, 3))
    rows[:, 0] = 100.0
    seen = transitions(rows)
    normalizer.step(normalizer.groups(seen, 0))
    scaled = normalizer.observation(seen.observation)
    newest = scaled["observation/place"][:, 1]
    assert newest.mean() == pytest.approx(0.0, abs=1e-5)
    assert newest.std() == pytest.approx(1.0, rel=0.01)
    assert (scaled["observation/place"][:, 0] == 10.0).all(), "within observation_clip"
    assert scaled["observation/eye"] is seen.observation["observation/eye"]


def test_the_size_of_returns_solves_its_recursion() -> None:
    rng = np.random.default_rng(3)
    reward = rng.choice([-1.0, 0.0, 5.0], 500)
    discount = 0.97 * (rng.random(500) > 0.1)
    mean = square = 0.0
    for _ in range(2_000):  # G = R + d·G', R and d independent of G' and of each other
        d, r = discount.mean(), reward.mean()
        mean, square = (
            r + d * mean,
            (reward**2).mean() + 2 * r * d * mean + (discount**2).mean() * square,
        )
    normalizer = Normalizer(spec_of(), AgentConfig(normalize_returns=True), CPU)
    normalizer.step(normalizer.groups(transitions(np.zeros((500, 3)), reward, discount), 0))
    assert np.sqrt(square) > 5.0
    assert normalizer.unit == pytest.approx(np.sqrt(square), rel=1e-4)
    scaled = normalizer.reward(torch.tensor([5.0]))
    assert float(scaled) == pytest.approx(5.0 / np.sqrt(square), rel=1e-4)


def test_returns_are_no_smaller_than_rewards_that_are_rare() -> None:
    reward = np.zeros(500)
    reward[0] = 20.0
    normalizer = Normalizer(spec_of(), AgentConfig(normalize_returns=True), CPU)
    normalizer.step(normalizer.groups(transitions(np.zeros((500, 3)), reward, 0.5), 0))
    assert normalizer.unit == pytest.approx(20.0)


def test_rewards_are_left_alone_until_there_is_one() -> None:
    normalizer = Normalizer(spec_of(), AgentConfig(normalize_returns=True, reward_scale=2.0), CPU)
    normalizer.step(normalizer.groups(transitions(np.zeros((5, 3)), 0.0), 0))
    assert normalizer.unit == 0.5
    assert float(normalizer.reward(torch.tensor(3.0))) == 6.0


def test_one_that_measures_nothing_is_no_group_and_changes_nothing() -> None:
    normalizer = Normalizer(spec_of(), AgentConfig(), CPU)
    seen = transitions(np.ones((2, 3)))
    assert normalizer.networks == {}
    assert normalizer.groups(seen, 0) == {}
    assert normalizer.transitions(seen) is seen


def test_own_encoders_see_small_images_as_they_are() -> None:
    """Checkpoints of 0.2.0 hold no statistics of them."""
    spec = EnvSpec({"observation/place": Field((3,), "float32"), "observation": Field((3, 3, 2), "float32")}, ONE_OF_2)
    for network, measured in (("", 2), ("own:Network", 1)):
        normalizer = Normalizer(spec, AgentConfig(network=network, normalize_observations=True), CPU)
        assert len(normalizer.networks[GROUP].weights()) == 2 * measured


def other_units(batch: Given) -> Given:
    """The same experience of an environment that counts in other units."""
    data = copied(batch.data)
    for name in data:
        if name.removeprefix("next_").startswith("observation"):
            data[name] = (data[name] * np.float32(1e4) - np.float32(300.0)).astype(np.float32)
    data["reward"] = data["reward"] * np.float32(1e3)
    return Given(data, batch.keys, batch.weights)


def test_an_agent_learns_alike_in_all_units(game: Game) -> None:
    one, two = game.agent(), game.agent()
    prepare = getattr(one, "prepare", lambda batch: batch), getattr(two, "prepare", lambda batch: batch)
    for batch in game.batches(4):
        learned = one.update(prepare[0](batch)), two.update(prepare[1](other_units(batch)))
        if learned[0].priorities is not None:
            np.testing.assert_allclose(learned[1].priorities, learned[0].priorities, rtol=2e-2, atol=2e-3)
    weights, others = one.weights(), two.weights()
    measured = [name for name in weights if name.startswith(f"{GROUP}/")]
    assert len(measured) == 3
    for name in weights.keys() - set(measured):
        np.testing.assert_allclose(others[name], weights[name], rtol=2e-2, atol=2e-3, err_msg=name)
    seen = game.seen(5)
    moved = {name: value * np.float32(1e4) - np.float32(300.0) for name, value in seen.items()}
    first, second = act(one, seen, greedy=True).actions, act(two, moved, greedy=True).actions
    np.testing.assert_allclose(second, first, rtol=2e-2, atol=2e-2)


def test_statistics_travel_with_weights_and_lie_in_checkpoints(game: Game) -> None:
    agent, actor, resumed = game.agent(), game.agent(seed=2), game.agent(seed=3)
    prepare = getattr(agent, "prepare", lambda batch: batch)
    first, second = game.batches(2)
    agent.update(prepare(first))
    statistics = {name: value for name, value in agent.weights().items() if name.startswith(f"{GROUP}/")}
    assert any(np.any(value) for value in statistics.values())
    actor.load(agent.weights())
    assert same(actor.weights(), agent.weights())
    resumed.load_state_dict(agent.state_dict())
    agent.update(prepare(second))
    resumed.update(prepare(second))
    assert same(resumed.state_dict(), agent.state_dict())
    before = copied(agent.weights())
    act(agent, game.seen(3), greedy=True)
    assert same(agent.weights(), before), "acting and evaluating measure nothing"


def test_a_batch_that_is_not_finite_is_not_measured(game: Game) -> None:
    agent = game.agent()
    prepare = getattr(agent, "prepare", lambda batch: batch)
    good, bad = game.batches(2)
    agent.update(prepare(good))
    before = copied(agent.state_dict())
    bad.data["reward"][...] = np.nan
    with pytest.raises(NonFiniteError):
        agent.update(prepare(bad))
    after = agent.state_dict()
    assert same(
        {name: after[name] for name in before if "draws" not in name and name not in ("rng", "noise")},
        {name: before[name] for name in before if "draws" not in name and name not in ("rng", "noise")},
    )


def test_expected_returns_are_in_the_environments_units(game: Game) -> None:
    one, two = game.agent(), game.agent()
    if game.name == "bc":
        return  # expects none
    prepare = getattr(one, "prepare", lambda batch: batch), getattr(two, "prepare", lambda batch: batch)
    for batch in game.batches(20):  # in the first ones may be no reward
        one.update(prepare[0](batch)), two.update(prepare[1](other_units(batch)))
    seen = game.seen(4)
    moved = {name: value * np.float32(1e4) - np.float32(300.0) for name, value in seen.items()}
    one_expected: Any = one
    two_expected: Any = two
    np.testing.assert_allclose(
        two_expected.expected_returns(moved), 1e3 * one_expected.expected_returns(seen), rtol=5e-2, atol=2.0
    )


@pytest.mark.parametrize("changes", [{}, {"epochs": 2, "minibatches": 2}, {"memory": "lstm"}])
def test_popart_keeps_what_values_say_as_their_units_change(changes: dict[str, Any]) -> None:
    game = Game("ppo", "vector", "discrete", popart=True, learning_rate=1e-20, reward_scale=1e3, **changes)
    agent: Any = game.agent()
    seen = game.seen(4)
    before = agent.expected_returns(seen)
    for batch in game.batches(3):
        agent.update(agent.prepare(batch))
    units = agent._normalizer.values()
    assert units.deviation > 100.0
    assert abs(float(units.mean)) > 100.0
    np.testing.assert_allclose(agent.expected_returns(seen), before, rtol=1e-3, atol=1e-3)
    game.close()


def test_popart_learns_alike_whatever_the_scale_of_returns() -> None:
    learned = []
    for scale in (1.0, 1e4):
        game = Game("impala", "vector", "discrete", popart=True, summed_loss=False)
        agent: Any = game.agent()
        for batch in game.batches(6):
            batch.data["reward"] = batch.data["reward"] * np.float32(scale)
            agent.update(agent.prepare(batch))
        learned.append(agent.weights())
        game.close()
    # the first update is made before there are units, and its gradient is clipped; values then learn in the same units
    one, two = learned
    assert two["normalizer/targets"][0] == pytest.approx(1e4 * one["normalizer/targets"][0], rel=0.2)
    assert np.abs(two["value.weight"]).max() < 10.0


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e30])
def test_an_observation_that_is_not_finite_never_enters_the_statistics(bad: float) -> None:
    normalizer = Normalizer(spec_of(), AgentConfig(**ON), CPU)
    rows = np.arange(12.0).reshape(4, 3)
    for updates in range(200):
        normalizer.step(normalizer.groups(transitions(rows), updates))
    (trained,) = normalizer.networks.values()
    before = trained.parameters.vector.clone()
    spoilt = rows.copy()
    spoilt[1, 2] = bad
    with pytest.raises(NonFiniteError, match="update 201: an observation or a reward"):
        normalizer.step(normalizer.groups(transitions(spoilt), 200))
    assert torch.equal(trained.parameters.vector, before)
    assert torch.isfinite(normalizer.groups(transitions(rows), 201)[GROUP]).all()


def test_rewards_on_the_cpu_are_scaled_by_statistics_on_a_gpu() -> None:
    normalizer = Normalizer(spec_of(), AgentConfig(**ON), CPU)
    with FakeTensorMode():  # checks devices without having them
        normalizer._size = torch.zeros(5, device="cuda")
        assert normalizer.reward(torch.ones(3)).device == CPU
        assert normalizer.reward(torch.ones(3, device="cuda")).device.type == "cuda"
