"""PQN: its update once more in float64, and that it learns."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from actor_critic_reference import CARTPOLE, config_of, played, spec_of, with_data
from signal_envs import STEPS
from signal_runs import config_of as run_of

import apexrl
from apexrl.agents.pqn import PQN
from apexrl.errors import AgentError, NonFiniteError
from apexrl.networks.layer_norm import StreamNorm
from apexrl.protocols import FRESH, Item
from apexrl.replay import Batch
from apexrl.spec import ActionSpec, EnvSpec, Field


def agent_for(seed: int = 0, **changes: Any) -> PQN:
    return PQN(spec_of(CARTPOLE), config_of("pqn", **{"trace_lambda": 0.8, **changes}), "cpu", seed)


@pytest.fixture(scope="module")
def unrolls() -> Batch:
    """All unrolls of 120 steps of 4 environments, by another policy than the learner's."""
    player: Any = agent_for(seed=3)
    return played(player, CARTPOLE)


def q_by_hand(net: Any, seen: Any) -> Any:
    """Q [..., n] of float64 observations [..., 4]: each hidden layer is normalised, then rectified."""
    (encoder,) = net.encoder.encoders
    x = torch.from_numpy(seen).double()
    for layer, norm in zip(encoder.layers, encoder.norms, strict=True):
        x = layer(x)
        mean, variance = x.mean(-1, keepdim=True), x.var(-1, correction=0, keepdim=True)
        x = torch.relu((x - mean) / (variance + 1e-5).sqrt() * norm.weight + norm.bias)
    return net.head(x)


def target_by_hand(agent: PQN, data: Any) -> tuple[Any, Any]:
    """λ-returns [B, T] of float64 values, in which nothing is vectorised, and which actions were greedy [B, T]."""
    config, net = agent._config, deepcopy(agent._network.network).double()
    with torch.no_grad():
        q = q_by_hand(net, data["observation"]).numpy()
    value, best = q.max(axis=2), q.argmax(axis=2)
    rows, steps = data["reward"].shape
    target = value[:, :-1].copy()
    for row in range(rows):
        for t in reversed(range(steps)):
            if not data["mask"][row, t]:
                continue
            later = value[row, t + 1]
            if t + 1 < steps and data["mask"][row, t + 1]:
                greedy = data["action"][row, t + 1] == best[row, t + 1]
                goes_on = config.trace_lambda * (greedy or config.multi_step == "peng")
                later = (1 - goes_on) * later + goes_on * target[row, t + 1]
            target[row, t] = data["reward"][row, t] + data["discount"][row, t] * later
    return target, data["action"] == best[:, :-1]


@pytest.mark.parametrize("multi_step", ["peng", "retrace"])
@pytest.mark.parametrize("huber", [0.0, 0.5])
def test_the_gradient_is_that_of_the_squared_distance_to_lambda_returns(
    unrolls: Batch, multi_step: str, huber: float
) -> None:
    agent = agent_for(multi_step=multi_step, huber=huber, gradient_clip=0.0)
    data = dict(unrolls.data)
    data[FRESH] = np.random.default_rng(0).random(data["mask"].shape) < 0.8
    target, greedy = target_by_hand(agent, data)
    taken = data["mask"]
    assert 0.05 < greedy[taken].mean() < 0.95, "both kinds of actions are there"
    net: Any = deepcopy(agent._network.network).double()
    for parameter in net.parameters():
        parameter.grad = None
    q = q_by_hand(net, data["observation"][:, :-1]).flatten(0, 1)
    q = q.gather(1, torch.from_numpy(data["action"]).flatten()[:, None])[:, 0]
    delta = torch.from_numpy(target).flatten() - q
    losses = 0.5 * delta**2 if not huber else torch.nn.functional.huber_loss(delta, 0 * delta, "none", delta=huber)
    loss = losses[torch.from_numpy(taken & data[FRESH]).flatten()].sum() / taken.sum()
    expected = dict(zip(dict(net.named_parameters()), torch.autograd.grad(loss, list(net.parameters())), strict=True))
    gradients = agent.gradients(agent.prepare(with_data(unrolls, data)))
    found = agent._network.parameters.split(gradients.groups["q"])
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name].double(), gradient, rtol=1e-3, atol=1e-5)
    assert gradients.metrics["loss"] == pytest.approx(float(loss.detach()), rel=1e-4)
    assert gradients.metrics["q"] == pytest.approx(
        float(q[torch.from_numpy(taken).flatten()].detach().mean()), rel=1e-4
    )


def test_retrace_and_peng_differ_where_actions_were_not_greedy(unrolls: Batch) -> None:
    batches = agent_for().prepare(unrolls)
    peng, retrace = (agent_for(multi_step=kind).aims(batches).target for kind in ("peng", "retrace"))
    assert not torch.allclose(peng, retrace)
    one, other = (agent_for(multi_step=kind, trace_lambda=0.0).aims(batches).target for kind in ("peng", "retrace"))
    torch.testing.assert_close(one, other)


def test_targets_stay_those_of_the_values_before_the_first_gradient_step(unrolls: Batch) -> None:
    """Every gradient step of an update leads to the same targets, part by part."""
    agent, watched = agent_for(epochs=2, minibatches=3, learning_rate=0.05), []
    whole = agent.aims(agent.prepare(unrolls)).target
    loss = agent.loss

    def noted(batch: Any, q: Any, aims: Any) -> Any:
        watched.append(aims.target.flatten())
        return loss(batch, q, aims)

    agent.loss = noted  # type: ignore[method-assign]
    agent.update(agent.prepare(unrolls))
    assert len(watched) == 6
    mask = torch.from_numpy(unrolls.data["mask"].T.copy())
    for epoch in (watched[:3], watched[3:]):
        torch.testing.assert_close(torch.cat(epoch).sort().values, whole[mask].sort().values)
    assert int(agent.state_dict()["updates"]) == 1


def test_an_update_that_fails_half_way_leaves_everything_as_it_was(unrolls: Batch) -> None:
    agent = agent_for(epochs=2, minibatches=4)
    before = {name: value.copy() for name, value in agent.state_dict().items()}
    steps, loss = [], agent.loss

    def failing(batch: Any, q: Any, aims: Any) -> Any:
        steps.append(1)
        return loss(batch, q, aims) * (float("nan") if len(steps) == 5 else 1.0)

    agent.loss = failing  # type: ignore[method-assign]
    with pytest.raises(NonFiniteError, match="the gradient is NaN or infinite"):
        agent.update(agent.prepare(unrolls))
    after = agent.state_dict()
    assert all(np.array_equal(before[name], after[name]) for name in before)


def test_it_needs_nothing_of_the_steps_and_refuses_what_it_is_not() -> None:
    agent = agent_for()
    assert agent.item == Item("unroll", 8)
    assert agent.step_spec == {}
    assert not hasattr(agent, "priorities")
    with pytest.raises(AgentError, match="pqn learns λ-returns of its unrolls: set --multi-step to peng or retrace"):
        agent_for(multi_step="n_step")
    with pytest.raises(AgentError, match="epochs 0"):
        agent_for(epochs=0)


def test_layer_normalisation_is_in_every_hidden_layer() -> None:
    vectors = agent_for(hidden=(6, 5))._network.network
    assert sum(isinstance(part, torch.nn.LayerNorm) for part in vectors.modules()) == 2
    spec = EnvSpec({"observation": Field((36, 36), "uint8")}, ActionSpec(n=3))
    images = PQN(spec, config_of("pqn", image_units=8, dueling=True))._network.network
    assert sum(isinstance(part, torch.nn.GroupNorm) for part in images.modules()) == 3
    assert sum(isinstance(part, StreamNorm) for part in images.modules()) == 1


@pytest.mark.parametrize(("topology", "asked", "steps"), [("impala", "multi", 2_400), ("ga3c", "discrete", 1_000)])
def test_it_learns_the_right_answer_to_every_signal(topology: str, asked: Any, steps: int, tmp_path: Path) -> None:
    config = run_of(
        "pqn", asked=asked, hidden=(32,), learning_rate=1e-2, minibatches=4, unroll_length=8, gamma=0.5, epsilon=0.05
    )
    run = apexrl.train(
        config, show=False, topology=topology, serial=True, env_steps=steps, exploration_steps=steps // 2, seed=1,
        eval_episodes=20, eval_period_seconds=3600.0, stop_at_return=None, out=str(tmp_path),
    )  # fmt: skip
    assert run.summary["last_weights_return"] == STEPS
    assert np.shape(run.agent.act(np.eye(3, dtype=np.float32)[0])) == ((2,) if asked == "multi" else ())
