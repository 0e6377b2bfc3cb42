"""The metrics that show why an agent does not learn, against numbers known beforehand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from signal_runs import Game, asks

from apexrl.agents import AGENTS
from apexrl.agents.diagnostics import (
    DeadUnits,
    GradientRecord,
    effective_samples,
    explained_variance,
    of_inputs,
    of_networks,
    support_edges,
)
from apexrl.agents.trained_network import METRICS_PERIOD_UPDATES
from apexrl.run.metric_catalogue import KNOWN

WEIGHTED = {"clipped_gradients", "dead_units", "observation_size", "reward_size", "effective_samples"}


def test_the_share_of_clipped_gradients_is_that_since_the_last_report() -> None:
    record = GradientRecord()
    for norm in (1.0, 3.0, 5.0, 2.0):
        record.note(norm, 2.0)
    assert record.report()["clipped_gradients"] == 0.5
    record.note(9.0, 0.0)  # no clipping
    assert record.report()["clipped_gradients"] == 0.0
    assert record.report() == {}


def test_the_relative_update_is_of_the_step_behind_a_report() -> None:
    record, parameters = GradientRecord(), torch.tensor([3.0, 4.0])
    assert record.before_step(parameters) is None  # nobody has asked yet
    record.report()
    before = record.before_step(parameters)
    parameters += torch.tensor([0.3, -0.4])
    record.after_step(before, parameters)
    assert record.before_step(parameters) is None
    record.note(1.0, 0.0)
    assert record.report()["relative_update"] == pytest.approx(0.5 / 5.0)


def test_of_several_networks_the_worst_counts_and_those_that_are_never_clipped_do_not() -> None:
    class Network:
        def __init__(self, *norms: float) -> None:
            self.record, self.learning_rate = GradientRecord(), max(norms, default=0.5)
            for norm in norms:
                self.record.note(norm, 1.0)

    found = of_networks({"policy": Network(0.5, 2.0), "critic": Network(2.0), "temperature": Network()})
    assert found == {"clipped_gradients": 1.0, "learning_rate": 2.0}


def test_dead_units_are_those_that_are_zero_for_every_row() -> None:
    x = torch.tensor([[1.0, -1.0, -2.0, -1.0], [-1.0, 2.0, -3.0, -1.0]])
    with DeadUnits(True) as units:
        torch.relu(x)
        x.clone().relu_()
    assert units.share() == {"dead_units": 0.5}
    image = -torch.ones(2, 3, 2, 2)
    image[1, 1, 0, 1] = 1.0
    with DeadUnits(True) as units:
        torch.relu_(image)
    assert units.share() == {"dead_units": pytest.approx(2 / 3)}
    with DeadUnits(False) as units:
        torch.relu(x)
    assert units.share() == {}


def test_dead_units_of_a_network_of_your_own_are_counted_too() -> None:
    with DeadUnits(True) as units:
        torch.nn.ReLU()(torch.tensor([[1.0, -1.0], [2.0, -3.0]]))
    assert units.share() == {"dead_units": 0.5}


def test_support_edges_are_those_of_scaled_observations() -> None:
    game = Game("d4pg", "vector", "box", normalize_observations=True)
    try:
        agent = game.agent()
        (batch,) = game.batches(1)
        prepared = agent.prepare(batch)
        agent.update(prepared)
        agent.updates = 0  # so that the next update has metrics
        seen = []
        agent._critic.network.register_forward_pre_hook(lambda _, given: seen.append(given[0]["observation"]))
        assert "support_edges" in agent.gradients(prepared).metrics
        assert torch.equal(seen[-1], agent._normalizer.observation(prepared.observation)["observation"])
        assert not torch.equal(seen[-1], prepared.observation["observation"])
    finally:
        game.close()


def test_effective_samples_are_kishs() -> None:
    assert effective_samples(torch.ones(7)) == pytest.approx(1.0)
    assert effective_samples(torch.tensor([1.0, 0.0, 0.0, 0.0])) == pytest.approx(0.25)
    assert effective_samples(torch.tensor([1.0, 0.5])) == pytest.approx(1.5**2 / (2 * 1.25))
    assert effective_samples(torch.zeros(3)) == 0.0


def test_explained_variance_is_one_of_right_values_and_none_of_constant_ones() -> None:
    target = torch.tensor([1.0, 2.0, 3.0, 4.0])
    assert explained_variance(target + 10.0, target) == {"explained_variance": pytest.approx(1.0)}
    assert explained_variance(torch.zeros(4), target) == {"explained_variance": pytest.approx(0.0)}
    assert explained_variance(-target, target) == {"explained_variance": pytest.approx(-3.0)}
    assert explained_variance(target, torch.full((4,), 1e4)) == {}


def test_support_edges_are_the_first_and_the_last_category() -> None:
    probabilities = torch.tensor([[0.5, 0.25, 0.25], [0.0, 1.0, 0.0]])
    assert support_edges(probabilities) == {"support_edges": pytest.approx(0.375)}


def test_input_sizes_leave_out_images_and_categories() -> None:
    observation = {
        "image": torch.full((2, 3, 3), 200, dtype=torch.uint8),
        "state": torch.tensor([5, 7]),
        "small": torch.ones(2, 3),
        "large": torch.full((2, 1), -30.0),
    }
    found = of_inputs(observation, torch.tensor([3.0, -4.0]))
    assert found == {"observation_size": 30.0, "reward_size": pytest.approx(12.5**0.5)}


@pytest.mark.parametrize("name", AGENTS)
def test_every_agent_reports_them_with_its_other_metrics_and_expects_returns(name: str) -> None:
    game = Game(name, "vector", asks(name)[0])
    try:
        agent = game.agent()
        (batch,) = game.batches(1)
        prepared = agent.prepare(batch)
        metrics = agent.update(prepared).metrics
        assert metrics.keys() >= WEIGHTED - ({"effective_samples"} if name == "pqn" else set())  # it has no weights
        assert ("explained_variance" in metrics) == (AGENTS[name].item == "unroll")
        for metric in ("support_edges", "temperature", "advantage", "rho", "clipped"):
            assert (metric in metrics) == (f"`{name}`" in KNOWN[f"agent/{metric}"].agents), metric
        period = METRICS_PERIOD_UPDATES
        reports = [found for _ in range(period) if (found := agent.update(prepared).metrics)]
        assert 0.0 < reports[-1]["relative_update"] < 1.0

        if name == "bc":  # it expects no returns
            return
        seen = game.seen(3)
        before = agent.weights()
        expected = agent.expected_returns(seen)
        assert (expected.shape, expected.dtype) == ((3,), np.float32)
        np.testing.assert_array_equal(agent.expected_returns(seen), expected)
        alone = agent.expected_returns({field: value[1:2] for field, value in seen.items()})
        np.testing.assert_allclose(alone, expected[1:2], rtol=1e-3, atol=1e-4)
        assert all(np.array_equal(value, before[key]) for key, value in agent.weights().items())
    finally:
        game.close()
