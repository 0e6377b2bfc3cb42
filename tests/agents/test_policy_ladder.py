"""R2D2 of several policies, each with a γ of its own (Never Give Up, Agent57)."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from signal_envs import STEPS, Shown
from signal_runs import Game, Given, act
from signal_runs import config_of as run_of

import apexrl
from apexrl.agents.horizon import ladder
from apexrl.agents.r2d2 import R2D2
from apexrl.config import AgentConfig
from apexrl.errors import AgentError
from apexrl.losses import sequence_target
from apexrl.networks.memory import LSTMState
from apexrl.networks.recurrent_trunk import POLICY

GAMMA, LEAST = 0.997, 0.9


def test_gammas_are_never_give_ups() -> None:
    """Badia et al. 2020, appendix, equation 4, in its own order of computing."""
    count = 32
    for i, gamma in enumerate(ladder(count, 0.997, 0.99)):
        power = ((count - 1 - i) * math.log(1.0 - 0.997) + i * math.log(1.0 - 0.99)) / (count - 1)
        assert gamma == pytest.approx(1.0 - math.exp(power), rel=1e-12)
    assert ladder(3, 0.999, 0.9) == pytest.approx([0.999, 0.99, 0.9])  # 1 − γ: 0.001, 0.01, 0.1
    assert ladder(1, 0.997, 0.9) == pytest.approx([0.997])


def game_of(shown: Shown = "vector", **changes: Any) -> Game:
    return Game("r2d2", shown, "discrete", **{"policies": 3, "gamma": GAMMA, "gamma_least": LEAST, **changes})


def test_an_episode_has_one_policy_which_its_sequences_keep() -> None:
    game = game_of()
    try:
        numbers = np.concatenate([items[POLICY] for items, _ in game.recorded])[:, 0]
        assert {*numbers.tolist()} == {1.0, 2.0, 3.0}
        agent, seen = game.agent(), game.seen(600)
        first = act(agent, seen, 0.1)
        drawn = first.state[POLICY]
        assert np.bincount(drawn[:, 0].astype(int), minlength=4)[1:].min() > 150
        np.testing.assert_array_equal(first.extras[POLICY], drawn)
        ended = {name: np.where(np.arange(600)[:, None] % 2 == 0, value, 0) for name, value in first.state.items()}
        again = act(agent, seen, 0.1, state=ended).state[POLICY]
        np.testing.assert_array_equal(again[::2], drawn[::2])  # who goes on goes on with its policy
        assert (again[1::2] != drawn[1::2]).any()
        assert (act(agent, seen, 0.1, greedy=True, state=first.state).state[POLICY] == 1.0).all()
    finally:
        game.close()


@pytest.mark.parametrize("shown", ["vector", "image"])
def test_who_acts_is_told_to_the_network(shown: Shown) -> None:
    game = game_of(shown)
    try:
        agent, seen = game.agent(), game.seen(3)
        network = agent._network.network
        units = game.config.agent.recurrent_units
        state = {name: np.zeros((3, units), np.float32) for name in ("lstm_h", "lstm_c")}
        acted = act(agent, seen, 0.0, state={**state, POLICY: np.array([[1], [3], [2]], np.float32)})
        frames = (game.spec.stack,) if game.spec.stack > 1 else ()
        told = torch.eye(3)[[0, 2, 1]].view(3, *(1,) * len(frames), 3).expand(3, *frames, 3)
        shown_to = agent._normalizer.observation({name: torch.from_numpy(value) for name, value in seen.items()})
        zeros = torch.zeros(3, units)
        q, _ = network.step({**shown_to, POLICY: told}, LSTMState(zeros, zeros))
        np.testing.assert_allclose(acted.extras["value"], q.max(dim=1).values.detach().numpy(), rtol=1e-5)
        other = act(agent, seen, 0.0, state={**state, POLICY: np.array([[2], [2], [2]], np.float32)})
        same = acted.extras["value"] == other.extras["value"]
        assert same.tolist() == [False, False, True]
    finally:
        game.close()


@pytest.mark.parametrize("shown", ["vector", "image"])
def test_a_target_has_the_gamma_of_its_sequences_policy(shown: Shown) -> None:
    """The loss beside that of one policy's arithmetic, with γ of each sequence in the place of the replay's."""
    game = game_of(shown)
    try:
        config, agent = game.config.agent, game.agent()
        (batch,) = game.batches(1)
        prepared = agent.prepare(batch)
        numbers = batch.data[POLICY][:, 0].astype(int)
        assert len({*numbers.tolist()}) > 1
        gammas = torch.tensor([ladder(3, GAMMA, LEAST)[number - 1] for number in numbers])
        assert prepared.discount.unique().tolist() == [0.0, pytest.approx(GAMMA)]
        discount = prepared.discount / GAMMA * gammas
        with torch.no_grad():
            q = agent._values(agent._network.network, prepared)  # online and target are the same yet
        bootstrap = q.max(dim=2).values
        target = sequence_target(
            prepared.reward, discount, prepared.mask, bootstrap, config.n_step, config.rescaling_eps
        )
        taken = q[:-1].gather(2, agent._choices.index(prepared.action.flatten()).view(*prepared.reward.shape, 1))
        delta = torch.where(prepared.mask, target - taken.squeeze(2), 0.0)
        wanted = (prepared.weights * 0.5 * torch.where(prepared.fresh, delta, 0.0).square().sum(0)).mean()
        assert float(agent.loss(prepared).loss.detach()) == pytest.approx(float(wanted), rel=1e-4)
        alone = replace(config, gamma_least=0.5)
        assert R2D2(game.spec, alone, seed=1).loss(prepared).loss != agent.loss(prepared).loss
    finally:
        game.close()


@pytest.mark.parametrize("shown", ["vector", "image"])
def test_actors_say_what_the_learner_would(shown: Shown) -> None:
    game = game_of(shown)
    try:
        agent: Any = game.agent(seed=7)
        items, priorities = max(game.recorded, key=lambda one: len(one[1]))
        known = Given(items, np.zeros(len(priorities), np.uint64), np.ones(len(priorities), np.float32))
        found = agent.gradients(agent.prepare(known)).priorities
        np.testing.assert_allclose(found, priorities, rtol=1e-3, atol=1e-4)
    finally:
        game.close()


def test_horizons_that_do_not_fall_are_refused() -> None:
    game = game_of()
    game.close()
    for changes in ({"gamma_least": 0.999}, {"gamma": 1.0}, {"gamma_least": 0.0}):
        with pytest.raises(AgentError, match="r2d2: with --policies 3 γ falls from --gamma to --gamma-least"):
            R2D2(game.spec, replace(game.config.agent, **changes))
    assert R2D2(game.spec, AgentConfig(agent="r2d2", gamma=1.0)).step_spec.keys() == {"q", "value", "lstm_h", "lstm_c"}


def test_the_first_policy_of_several_learns(tmp_path: Path) -> None:
    config = run_of(
        "r2d2", policies=4, gamma=0.8, gamma_least=0.3, hidden=(32,), recurrent_units=16, learning_rate=1e-2,
        optimizer_eps=1e-8, target_period_updates=50, n_step=1, epsilon=0.4, updates_per_step=0.25, batch_size=16,
    )  # fmt: skip
    run = apexrl.train(
        config, show=False, serial=True, env_steps=2_000, seed=1, eval_episodes=20, eval_period_seconds=3600.0,
        stop_at_return=None, out=str(tmp_path),
    )  # fmt: skip
    assert run.summary["last_weights_return"] == STEPS
