"""Teams with a memory: every agent has its own, as a loop over agents and steps in NumPy finds."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from apexrl.agents import agent_class, with_agent
from apexrl.config import Config
from apexrl.config.convert import override
from apexrl.evaluation.loaded_agent import LoadedAgent
from apexrl.networks.recall import Present
from apexrl.spec import ACTION_MASK, PRESENT, TEAM, ActionSpec, EnvSpec, Field

K, N, ROWS, WARM, LENGTH, UNITS, GAMMA, ETA = 3, 4, 5, 2, 4, 6, 0.9, 0.7
STEPS = WARM + LENGTH


class Given(NamedTuple):
    data: dict[str, Any]
    keys: Any
    weights: Any


def made(name: str, stack: int, **changes: Any) -> Any:
    fields = {TEAM: Field((K, 5), "float32"), PRESENT: Field((K,), "int8"), ACTION_MASK: Field((K * N,), "bool")}
    spec = EnvSpec(fields, ActionSpec(shape=(K,), nvec=(N,) * K, starts=(0,) * K), stack)
    own = {"hidden": (7,), "mixing_units": 8, "memory": "gru", "recurrent_units": UNITS, "burn_in": WARM}
    own |= {"sequence_length": LENGTH, "sequence_stride": 2, "n_step": 1, "gamma": GAMMA, "priority_eta": ETA}
    return agent_class(name)(spec, override(with_agent(Config(), name), {**own, **changes}).agent, "cpu", 1)


def recorded(stack: int) -> Given:
    """Sequences, of which the second begins an episode in its middle and the third ends early."""
    rng = np.random.default_rng(0)
    lead = (ROWS, STEPS + 1, *((stack,) if stack > 1 else ()))
    masks = rng.random((*lead, K, N)) < 0.6
    masks[..., 0] = True
    mask, first = np.ones((ROWS, STEPS), bool), np.zeros((ROWS, STEPS + 1), bool)
    first[1, 3], mask[2, -1] = True, False
    discount = np.full((ROWS, STEPS), GAMMA, np.float32)
    discount[0, -1] = 0.0
    data = {
        TEAM: rng.normal(size=(*lead, K, 5)).astype(np.float32),
        PRESENT: (rng.random((*lead, K)) < 0.8).astype(np.int8),
        ACTION_MASK: masks.reshape(*lead, K * N),
        "action": rng.integers(N, size=(ROWS, STEPS, K)),
        "reward": rng.normal(size=(ROWS, STEPS)).astype(np.float32),
        "discount": discount,
        "mask": mask,
        "first": first,
        "gru_h": rng.normal(size=(ROWS, K, UNITS)).astype(np.float32),
    }
    return Given(data, np.zeros(ROWS, np.uint64), rng.random(ROWS).astype(np.float32))


def by_a_loop(network: Any, data: dict[str, Any]) -> Any:
    """Q_i [STEPS + 1, ROWS, K, N], one agent and one step after the other."""
    found = np.zeros((STEPS + 1, ROWS, K, N), np.float32)
    for row in range(ROWS):
        for agent in range(K):
            state = {"gru_h": torch.from_numpy(data["gru_h"][row, agent])[None]}
            for step in range(STEPS + 1):
                if data["first"][row, step]:
                    state = {"gru_h": torch.zeros(1, UNITS)}
                seen = Present({TEAM: torch.from_numpy(data[TEAM][row, step][..., agent, :])[None]}, state)
                with torch.no_grad():
                    found[step, row, agent] = network.q(seen)[0].numpy()
                state = seen.after
    return found


@pytest.mark.parametrize("stack", [1, 2])
@pytest.mark.parametrize("name", ["vdn", "qmix"])
def test_it_learns_from_sequences_as_from_transitions_of_agents_that_remember(name: str, stack: int) -> None:
    agent, given = made(name, stack), recorded(stack)
    with torch.no_grad():
        for parameter in agent._network.target.parameters():  # another one than the network
            parameter.add_(0.1 * torch.randn_like(parameter))
    online, target, data = agent._network.network, agent._network.target, given.data
    q, later = by_a_loop(online, data), by_a_loop(target, data)

    def newest(name: str, step: int) -> Any:
        return data[name][:, step, -1] if stack > 1 else data[name][:, step]

    def together(network: Any, values: Any, step: int) -> Any:
        seen = {name: torch.from_numpy(data[name][:, step]) for name in (TEAM, PRESENT)}
        with torch.no_grad():
            return network.together(torch.from_numpy(values), seen).numpy()

    delta = np.zeros((LENGTH, ROWS))
    for step in range(WARM, STEPS):
        possible = newest(ACTION_MASK, step + 1).reshape(ROWS, K, N)
        y = together(target, np.where(possible, later[step + 1], -np.inf).max(axis=2), step + 1)
        taken = np.take_along_axis(q[step], data["action"][:, step][..., None], axis=2)[..., 0]
        delta[step - WARM] = data["reward"][:, step] + data["discount"][:, step] * y - together(online, taken, step)
    mask = data["mask"][:, WARM:].T
    found = agent.gradients(agent.prepare(given))
    largest = np.abs(np.where(mask, delta, 0.0))
    expected = ETA * largest.max(axis=0) + (1 - ETA) * largest.sum(axis=0) / mask.sum(axis=0)
    np.testing.assert_allclose(found.priorities, expected, rtol=1e-4, atol=1e-5)
    losses = np.broadcast_to(given.weights, mask.shape)[mask] * 0.5 * delta[mask] ** 2
    assert found.metrics["loss"] == pytest.approx(float(losses.mean()), rel=1e-4)
    assert float(found.groups["q"].abs().sum()) > 0.0


def shown(rng: np.random.Generator, rows: int) -> dict[str, Any]:
    observations = {TEAM: rng.normal(size=(rows, K, 5)).astype(np.float32), PRESENT: np.ones((rows, K), np.int8)}
    return {**observations, ACTION_MASK: np.ones((rows, K * N), bool)}


def test_acting_carries_every_agents_state_and_records_the_one_before() -> None:
    agent, seen = made("qmix", 1), shown(np.random.default_rng(1), 2)
    assert agent.step_spec == {"gru_h": Field((K, UNITS), "float32", per_item=True)}
    first = agent.act(seen, None, np.zeros(2, np.float32), greedy=True)
    second = agent.act(seen, first.state, np.zeros(2, np.float32))
    assert not first.extras["gru_h"].any()
    np.testing.assert_array_equal(second.extras["gru_h"], first.state["gru_h"])
    turned = {
        **seen,
        TEAM: np.ascontiguousarray(seen[TEAM][:, ::-1]),
    }  # each agent's state follows from what it alone has seen
    np.testing.assert_allclose(
        agent.act(turned, None, np.zeros(2, np.float32)).state["gru_h"], first.state["gru_h"][:, ::-1], rtol=1e-5
    )
    tensors = {name: torch.from_numpy(value) for name, value in seen.items()}
    with torch.no_grad():
        decided = agent.decide(tensors, {"gru_h": torch.zeros(2, K, UNITS)})
    np.testing.assert_array_equal(decided.action.numpy(), first.actions)
    torch.testing.assert_close(decided.state["gru_h"], torch.from_numpy(first.state["gru_h"]))


@pytest.mark.long
def test_its_exported_file_remembers_as_it_does(tmp_path: Path) -> None:
    import onnxruntime

    agent, rng = made("qmix", 1), np.random.default_rng(2)
    LoadedAgent(agent, agent._spec).export(tmp_path / "agent.onnx")
    run = onnxruntime.InferenceSession(tmp_path / "agent.onnx", providers=["CPUExecutionProvider"])
    names = [one.name for one in run.get_outputs()]
    for rows in (1, 4):
        state, theirs = {"gru_h": np.zeros((rows, K, UNITS), np.float32)}, None
        for _ in range(3):
            seen = shown(rng, rows)
            out = dict(zip(names, run.run(None, {**seen, **state}), strict=True))
            acted = agent.act(seen, theirs, np.zeros(rows, np.float32), greedy=True)
            theirs, state = acted.state, {"gru_h": out["next_gru_h"]}
            np.testing.assert_array_equal(out["action"], acted.actions)
            np.testing.assert_allclose(state["gru_h"], theirs["gru_h"], rtol=1e-5, atol=1e-6)
