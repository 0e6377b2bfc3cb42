"""Acting by weights in oneDNN's order: the same to rounding, and always by the newest weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from apexrl.agents import acting_products, agent_class
from apexrl.agents.acting_products import LEAST_WORK, WORTH, quicken_acting
from apexrl.config import AgentConfig
from apexrl.spec import ActionSpec, EnvSpec, Field

SPEC = EnvSpec({"observation": Field((6,), "float32")}, ActionSpec((), "int64", n=3))
BOX = EnvSpec({"observation": Field((6,), "float32")}, ActionSpec((2,), "float32", low=-np.ones(2), high=np.ones(2)))
ROWS = LEAST_WORK // 512**2
SEEN = {"observation": np.random.default_rng(0).normal(size=(ROWS, 6)).astype(np.float32)}
EXPLORATION = np.zeros(ROWS, np.float32)


@pytest.fixture(autouse=True)
def _able(monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor that oneDNN is quicker on: its products are right on any."""
    monkeypatch.setattr(acting_products, "able", lambda: True)


@pytest.fixture
def ordered(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes of weights that were put in order."""
    shapes: list[tuple[int, ...]] = []
    order = acting_products._in_order

    def noted(weight: torch.Tensor) -> torch.Tensor:
        shapes.append(tuple(weight.shape))
        return order(weight)

    monkeypatch.setattr(acting_products, "_in_order", noted)
    return shapes


def made(name: str, seed: int) -> Any:
    spec = BOX if name == "sac" else SPEC
    return agent_class(name)(spec, AgentConfig(agent=name, hidden=(512, 512)), "cpu", seed)


def outputs(agent: Any) -> torch.Tensor:
    """Of the network that acts, which is the first."""
    network = next(iter(agent.networks.values())).network
    seen = {name: torch.from_numpy(values) for name, values in SEEN.items()}
    with torch.no_grad():
        found: torch.Tensor = network.act(seen)[0] if hasattr(network, "act") else network(seen)
    return found


@pytest.mark.parametrize("name", ["ppo", "dueling_dqn", "sac", "discrete_sac"])
def test_quick_agents_act_as_others_do(name: str, ordered: list[tuple[int, ...]]) -> None:
    plain, quick = made(name, 1), made(name, 1)
    assert quicken_acting(quick, "cpu")
    assert not ordered or set(ordered) == {(256, 256)}  # of the check
    ordered.clear()
    for seed in (2, 3):
        weights = made(name, seed).weights()
        for agent in (plain, quick):
            agent.load(weights)
        for _ in range(WORTH + 2):
            acted = [agent.act(SEEN, None, EXPLORATION, greedy=True).actions for agent in (plain, quick)]
            np.testing.assert_allclose(*acted, rtol=0, atol=1e-5)
            torch.testing.assert_close(outputs(quick), outputs(plain), rtol=0, atol=1e-5)
    assert ordered
    assert set(ordered) == {(512, 512)}


def test_weights_are_put_in_order_where_they_stay(ordered: list[tuple[int, ...]]) -> None:
    agent = made("ppo", 1)
    quicken_acting(agent, "cpu")
    ordered.clear()
    weights = agent.weights()

    def times(acts: int) -> int:
        """How often, in so many acts by new weights."""
        ordered.clear()
        agent.load(weights)
        for _ in range(acts):
            agent.act(SEEN, None, EXPLORATION)
        return len(ordered)

    assert times(WORTH) == 0
    assert times(1) == 1  # those before were used often enough
    assert times(1) == 0
    assert times(WORTH + 1) == 1
    assert times(100) == 1


def test_few_rows_and_gradients_are_as_they_were(ordered: list[tuple[int, ...]]) -> None:
    agent = made("ppo", 1)
    quicken_acting(agent, "cpu")
    ordered.clear()
    few = {name: values[: ROWS - 1] for name, values in SEEN.items()}
    network = agent.networks["policy_value"].network
    seen = {name: torch.from_numpy(values) for name, values in SEEN.items()}
    for _ in range(2 * WORTH):
        agent.act(few, None, EXPLORATION[1:])
        network.act(seen)[0].sum().backward()
    assert not ordered
    assert all(float(one.grad.abs().sum()) > 0 for one in network.trunk.parameters())


def test_updates_in_place_are_seen() -> None:
    plain, quick = made("ppo", 1), made("ppo", 1)
    quicken_acting(quick, "cpu")
    for _ in range(3 * WORTH):
        outputs(quick)
    for agent in (plain, quick):
        agent.networks["policy_value"].parameters.vector.mul_(1.5)
    torch.testing.assert_close(outputs(quick), outputs(plain), rtol=0, atol=1e-5)
    for agent in (plain, quick):
        parameters = agent.networks["policy_value"].parameters
        parameters.bind(0.5 * parameters.vector)
    torch.testing.assert_close(outputs(quick), outputs(plain), rtol=0, atol=1e-5)


def test_a_copied_network_goes_its_own_way() -> None:
    """As of an own agent that copies its network while it acts; weights in order cannot be copied."""
    plain, quick = made("dueling_dqn", 1), made("dueling_dqn", 1)
    quicken_acting(quick, "cpu")
    for _ in range(2 * WORTH):
        outputs(quick)
    seen = {name: torch.from_numpy(values) for name, values in SEEN.items()}

    def following(agent: Any) -> torch.Tensor:
        with torch.no_grad():
            found: torch.Tensor = agent.networks["q"].target(seen)
        return found

    for factor in (1.0, 1.5):
        for agent in (plain, quick):
            agent.networks["q"].target_parameters.vector.mul_(factor)
        for _ in range(2 * WORTH):
            torch.testing.assert_close(following(quick), following(plain), rtol=0, atol=1e-4)
    torch.testing.assert_close(outputs(quick), outputs(plain), rtol=0, atol=1e-5)


@pytest.mark.parametrize("what", ["able", "_has_operators"])
def test_where_it_cannot_be_nothing_changes(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acting_products, what, lambda: False)
    agent = made("ppo", 1)
    assert not quicken_acting(agent, "cpu")
    assert not any("forward" in vars(layer) for layer in agent.networks["policy_value"].network.modules())


def test_products_of_fewer_digits_are_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        acting_products, "_product", lambda x, weight, bias: (x.bfloat16() @ weight.to_dense().t().bfloat16()).float()
    )
    assert not quicken_acting(made("ppo", 1), "cpu")


def test_other_devices_and_agents_are_left_alone() -> None:
    assert not quicken_acting(made("ppo", 1), "cuda:0")
    assert not quicken_acting(object(), "cpu")
