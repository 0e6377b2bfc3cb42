"""A value that sees the state of the environment, and a policy that does not (MAPPO)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from actor_critic_reference import ByHand, config_of, played, some, through
from torch import Tensor

from apexrl.agents.actor_critic import ActorCritic
from apexrl.config import EnvConfig
from apexrl.envs import make_vector
from apexrl.errors import AgentError, SpecError
from apexrl.evaluation.loaded_agent import LoadedAgent
from apexrl.networks.recurrent_trunk import RecurrentTrunk
from apexrl.spec import ActionSpec, Array, EnvSpec, Field

TOGETHER = EnvConfig(env="cooperative_toys:parallel_env", show_state=True)
OWN, STATE = "observation/obs", "observation/state"
MEMORY: dict[str, Any] = {"memory": "lstm"}


def spec_of(env: EnvConfig = TOGETHER) -> EnvSpec:
    vector = make_vector(env, 2, 0)
    try:
        return vector.spec
    finally:
        vector.close()


def agent_for(name: str = "ppo", seed: int = 0, **changes: Any) -> ActorCritic:
    agent = ActorCritic(spec_of(), config_of(name, central_value=True, **changes), "cpu", seed)
    with torch.no_grad():
        agent._network.network.policy.weight.mul_(400.0)
    return agent


def seen(rows: int = 6, seed: int = 0) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    shapes = {name: field.shape for name, field in spec_of().observation.items()}
    return {name: rng.standard_normal((rows, *shape)).astype(np.float32) for name, shape in shapes.items()}


class CentralByHand(ByHand):
    """The rule written out, where the policy is given its own part of an observation, and the value everything."""

    def says(self, data: dict[str, Array], row: int) -> list[tuple[Tensor, Tensor, Tensor]]:
        trunk, state = self.net.trunk, None
        if isinstance(self.net.recurrent, RecurrentTrunk):
            trunk = self.net.recurrent.trunk
            state = [torch.from_numpy(data[name][row : row + 1]).double() for name in ("lstm_h", "lstm_c")]
        assert trunk is not None
        assert self.net.value_trunk is not None
        joint: Any = self.net.value_trunk.encoder
        answers = []
        for column, first in enumerate(data["first"][row]):
            own, whole = (torch.from_numpy(data[name][row : row + 1, column]).double() for name in (OWN, STATE))
            x = through(trunk, own)
            if state is not None:
                assert self.net.recurrent is not None
                state = [torch.zeros_like(part) if first else part for part in state]
                state = list(torch.lstm_cell(x, state, *self.net.recurrent.lstm.all_weights[0]))
                x = state[0]
            step = min(column, data["mask"].shape[1] - 1)
            y = torch.cat((own, whole), dim=1)
            for layer in joint.joint.layers:
                y = torch.relu(layer(y))
            answers.append((*self.of_action(self.net.policy(x)[0], data, row, step), self.net.value(y)[0, 0]))
        return answers


@pytest.mark.parametrize(("name", "memory"), [("ppo", {}), ("impala", {}), ("appo", MEMORY)], ids=str)
def test_the_gradient_is_that_of_the_rule_with_two_views(name: str, memory: dict[str, Any]) -> None:
    batch = some(played(agent_for(**memory), TOGETHER, 60), slice(4, 14))
    agent = agent_for(name, seed=5, gradient_clip=0.0, **memory)
    by_hand = CentralByHand(agent)
    expected = by_hand.gradient(batch.data, [by_hand.aims(batch.data, row) for row in range(10)])
    found = agent._network.parameters.split(agent.gradients(agent.prepare(batch)).groups["policy_value"])
    assert found.keys() == expected.keys()
    largest = max(float(gradient.abs().max()) for gradient in expected.values())
    for key, gradient in expected.items():
        torch.testing.assert_close(found[key].double(), gradient, rtol=2e-3, atol=2e-4 * largest)


@pytest.mark.parametrize("memory", [{}, MEMORY], ids=["plain", "memory"])
def test_the_state_changes_the_value_and_not_the_policy(memory: dict[str, Any]) -> None:
    agent, one = agent_for(normalize_observations=True, **memory), seen()
    other = one | {STATE: one[STATE] + 1.0}
    none = {OWN: one[OWN]}
    still = np.zeros(6, np.float32)
    for greedy in (True, False):
        acted = [
            agent_for(normalize_observations=True, **memory).act(x, None, still, greedy) for x in (one, other, none)
        ]
        for another in acted[1:]:
            np.testing.assert_array_equal(another.actions, acted[0].actions)
            np.testing.assert_array_equal(another.extras["log_prob"], acted[0].extras["log_prob"])
    assert len(set(acted[0].extras["log_prob"].tolist())) == 6, "it depends on what the agent itself sees"
    values, others = agent.expected_returns(one), agent.expected_returns(other)
    assert (np.abs(values - others) > 1e-4).all()
    moved = agent.expected_returns(one | {OWN: one[OWN] + 1.0})
    assert (np.abs(values - moved) > 1e-4).all(), "it sees the agent's own part, too"


def test_a_network_of_your_own_is_not_shown_the_state() -> None:
    agent = agent_for(network="test_central_value:Noting")
    network = agent._network.network
    assert network.trunk is not None
    assert network.value_trunk is not None
    observation = {name: torch.from_numpy(value) for name, value in seen().items()}
    network.unroll({name: value.unsqueeze(1) for name, value in observation.items()})
    network.act(observation)
    policy, value = (trunk.encoder for trunk in (network.trunk, network.value_trunk))
    assert set(policy.names) == {(OWN,)}
    assert set(value.names) == {(OWN, STATE)}


class Noting(torch.nn.Module):
    """Notes which entries it is shown."""

    features = 3

    def __init__(self, spec: EnvSpec) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(spec.observation[OWN].shape[0], 3)
        self.names: list[tuple[str, ...]] = []

    def forward(self, observation: Any) -> Tensor:
        self.names.append(tuple(sorted(observation)))
        found: Tensor = self.layer(observation[OWN])
        return found


def test_who_acts_with_it_later_needs_no_state() -> None:
    loaded, one = LoadedAgent(agent_for(), spec_of()), seen()
    assert list(loaded.spec.observation) == [OWN]
    entries = {name.removeprefix("observation/"): value for name, value in one.items()}
    alone = {"obs": entries["obs"]}
    np.testing.assert_array_equal(loaded.act(alone), loaded.act(entries))
    with pytest.raises(SpecError, match=r"needs \['observation/obs'\], but got \['observation/seen'\]"):
        loaded.act({"seen": entries["obs"]})


@pytest.mark.long
def test_an_exported_file_needs_no_state(tmp_path: Path) -> None:
    loaded, one = LoadedAgent(agent_for(), spec_of()), seen()
    alone = {"obs": one[OWN]}
    shapes = loaded.export(tmp_path / "agent.pt2", "pt2")
    assert list(shapes["inputs"]) == [OWN]
    program: Any = torch.export.load(tmp_path / "agent.pt2").module()
    np.testing.assert_array_equal(np.asarray(program(torch.from_numpy(one[OWN]))[0]), loaded.act(alone))


def test_a_state_of_several_entries_is_hidden_as_one() -> None:
    box, count = Field((3,), "float32"), Field((), "int64")
    fields = {"observation/own": box, "observation/states": box, f"{STATE}/x": box, f"{STATE}/kind": count}
    spec = EnvSpec(fields, ActionSpec(n=2), categories={f"{STATE}/kind": 4}, starts={f"{STATE}/kind": 1})
    left = spec.without_state()
    assert list(left.observation) == ["observation/own", "observation/states"]
    assert not left.categories
    assert not left.starts
    agent = ActorCritic(spec, config_of("ppo", central_value=True), "cpu", 0)
    assert agent.acting_spec == left


def test_without_a_state_or_without_anything_else_it_is_refused() -> None:
    config, own = config_of("ppo", central_value=True), Field((3,), "float32")
    with pytest.raises(AgentError, match=r"central_value: observations have no observation/state.*--show-state"):
        ActorCritic(spec_of(EnvConfig(env="cooperative_toys:parallel_env")), config, "cpu", 0)
    with pytest.raises(AgentError, match="nothing but the state"):
        ActorCritic(EnvSpec({STATE: own}, ActionSpec(n=2)), config, "cpu", 0)


@pytest.mark.parametrize("scaled", [False, True])
def test_first_central_values_are_small_beside_returns_that_are_scaled_to_one(scaled: bool) -> None:
    values = agent_for(normalize_returns=scaled).expected_returns(seen(rows=200))
    assert (np.abs(values).max() < 0.05) == scaled
    alone = ActorCritic(spec_of(), config_of("ppo", normalize_returns=scaled), "cpu", 0)
    assert np.abs(alone.expected_returns(seen(rows=200))).max() > 0.05
