"""Resets of Q-networks, and returns whose horizon changes after them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from signal_envs import STEPS, Shown
from signal_runs import Game
from signal_runs import config_of as run_of
from torch import nn

import apexrl
from apexrl import topologies
from apexrl.agents import agent_class, with_agent
from apexrl.agents.dqn import DQN
from apexrl.agents.horizon import Horizon, horizon, last_reset
from apexrl.agents.resets import shrink_and_perturb
from apexrl.agents.rng_state import seeded_layers
from apexrl.config import AgentConfig, Config
from apexrl.config.convert import check_values, override
from apexrl.errors import AgentError, ConfigError
from apexrl.networks import FlatParameters, QNetwork
from apexrl.protocols import Item, Place
from apexrl.replay import Replay
from apexrl.roles.schedules import HorizonOf
from apexrl.spec import ActionSpec, EnvSpec, Field
from apexrl.topologies import Probe, topology
from apexrl.topologies.ray_cut import sampling
from apexrl.topologies.replay_links import window

SPEC = EnvSpec({"observation": Field((3,), "float32")}, ActionSpec(n=2))
BBF = AgentConfig(
    agent="dqn", anneal_horizon=True, n_step=3, gamma=0.997, reset_period_updates=40_000, reset_until_updates=100_000
)


# The horizon


@pytest.mark.parametrize(
    ("updates", "n_step", "gamma"),
    [
        (0, 10, 0.97),
        (5_000, 5, 1 - 0.00009**0.5),  # the geometric means: 10·√0.3 is 5.48; √(0.03·0.003)
        (10_000, 3, 0.997),
        (39_999, 3, 0.997),
        (40_000, 10, 0.97),
        (85_000, 5, 1 - 0.00009**0.5),
        (125_000, 3, 0.997),  # nothing was reset after 100 000
    ],
)
def test_n_and_gamma_of_bbf(updates: int, n_step: int, gamma: float) -> None:
    assert horizon(BBF, updates) == (n_step, pytest.approx(gamma, rel=1e-12))


def test_the_horizon_is_the_authors() -> None:
    """Their exponential_decay_scheduler, in its own order of computing."""

    def scheduled(step: int, initial: float, final: float, reverse: bool = False) -> float:
        initial, final = (1 - initial, 1 - final) if reverse else (initial, final)
        left = np.clip((10_000 - step) / 10_000, 0.0, 1.0)
        value = float(np.exp(left * (np.log(initial) - np.log(final)) + np.log(final)))
        return 1 - value if reverse else value

    for updates in range(0, 12_000, 37):
        found = horizon(BBF, updates)
        assert found.n_step == round(scheduled(updates, 1, 3 / 10) * 10)
        assert found.gamma == pytest.approx(scheduled(updates, 0.97, 0.997, reverse=True), rel=1e-12)


def test_without_annealing_the_horizon_stays() -> None:
    plain = AgentConfig(n_step=3, gamma=0.99, reset_period_updates=10)
    assert {horizon(plain, updates) for updates in range(30)} == {Horizon(3, 0.99)}
    assert [last_reset(plain, updates) for updates in (0, 9, 10, 19, 20)] == [0, 0, 10, 10, 20]


def test_items_are_as_long_as_the_longest_return() -> None:
    for changes, longest in (({}, 10), ({"n_step_start": 2}, 3), ({"anneal_horizon": False}, 3)):
        config = override(Config(), {"anneal_horizon": True, "n_step": 3, **changes})
        assert window(Item(), config.agent) == {"kind": "transition", "n_step": longest}


def test_what_cannot_be_annealed_is_refused() -> None:
    for gamma in (0.0, 1.0):
        with pytest.raises(ConfigError, match=f"1 − γ exponentially, .* set --gamma between 0 and 1, not {gamma:g}"):
            check_values(override(with_agent(Config(), "sac"), {"anneal_horizon": True, "gamma": gamma}))
    soft = {"anneal_horizon": True, "munchausen": True, "double": False, "n_step": 1}
    with pytest.raises(AgentError, match=r"--anneal-horizon and --n-step-start 10.* set --n-step-"):
        DQN(SPEC, override(with_agent(Config(), "dqn"), soft).agent)
    with pytest.raises(AgentError, match="--anneal-horizon needs an agent with horizon, which SimpleNamespace has not"):
        HorizonOf(SimpleNamespace(), override(Config(), {"anneal_horizon": True}))
    with pytest.raises(AgentError, match="needs an agent with horizon"):
        HorizonOf(SimpleNamespace(item=Item("unroll", 8)), override(Config(), {"anneal_horizon": True}))


@pytest.mark.parametrize("name", ["dqn", "vdn", "discrete_sac", "sac", "td3", "iql", "ppo", "pqn"])
def test_a_run_of_any_agent_learns_by_the_gamma_of_its_schedule(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = agent_class(name)
    gammas: list[float] = []
    update: Callable[..., Any] = kind.update

    def noted(agent: Any, prepared: Any) -> Any:
        gammas.append(float(prepared.discount.max()))
        return update(agent, prepared)

    monkeypatch.setattr(kind, "update", noted)
    horizons = {"anneal_horizon": True, "gamma_start": 0.5, "gamma": 0.9, "horizon_updates": 10}
    config = run_of(name, **horizons, **({} if name in ("ppo", "pqn") else {"n_step_start": 1, "n_step": 1}))
    apexrl.train(
        config, show=False, serial=True, env_steps=400, seed=1, eval_episodes=1, eval_period_seconds=3600.0,
        stop_at_return=None, out=str(tmp_path),
    )  # fmt: skip
    wanted = [horizon(config.agent, updates).gamma for updates in range(len(gammas))]
    known = [(found, now) for found, now in zip(gammas, wanted, strict=True) if found]  # else every step ended a game
    assert known[0] == (0.5, 0.5)
    assert len(known) > 12
    assert [found for found, _ in known] == pytest.approx([now for _, now in known])


# Resets


class Small(nn.Module):
    def __init__(self, values: list[float]) -> None:
        super().__init__()
        self.encoder = nn.Linear(2, 1, bias=False)
        self.head = nn.Linear(1, 2, bias=False)
        for parameter, value in zip(self.parameters(), (values[:2], values[2:]), strict=True):
            parameter.data = torch.tensor(value).view(parameter.shape)


def test_the_encoder_keeps_a_share_and_the_head_nothing() -> None:
    parameters = FlatParameters(Small([1.0, -2.0, 3.0, 4.0]))
    shrink_and_perturb(parameters, FlatParameters(Small([0.5, 0.5, -7.0, -8.0])).vector, 0.8)
    weights = parameters.arrays()
    np.testing.assert_allclose(weights["encoder.weight"], [[0.9, -1.5]], rtol=1e-6)  # 0.8·1 + 0.2·0.5, …
    np.testing.assert_array_equal(weights["head.weight"], [[-7.0], [-8.0]])


def trained(game: Game, updates: int, seed: int = 1, **changes: Any) -> DQN:
    agent = DQN(game.spec, override(game.config, changes).agent, seed=seed)
    for batch in game.batches(updates):
        agent.update(agent.prepare(batch))
    return agent


@pytest.mark.parametrize(("shown", "changes"), [("vector", {"optimizer": "rmsprop"}), ("image", {"noisy": True})])
def test_a_reset_makes_network_target_and_optimizer_anew(shown: Shown, changes: dict[str, Any]) -> None:
    game = Game("dueling_dqn", shown, "discrete", polyak=0.3, **changes)
    try:
        batches = game.batches(3)
        found = []
        for period in (0, 3):
            config = override(game.config, {"reset_period_updates": period, "shrink_factor": 0.8}).agent
            agent = DQN(game.spec, config, seed=5)
            for batch in batches:
                agent.update(agent.prepare(batch))
            found.append(agent)
        before, after = (agent.state_dict() for agent in found)
        seeds = np.random.default_rng(np.random.SeedSequence([5, 2]))
        noisy = 0.5 if changes.get("noisy") else 0.0
        for part in ("online", "target"):
            with seeded_layers(int(seeds.integers(2**63))):
                fresh = QNetwork(game.spec, config.hidden, True, noisy_sigma=noisy, image_units=config.image_units)
            for name, parameter in fresh.named_parameters():
                new, old = parameter.detach().numpy(), before[f"{part}/{name}"]
                wanted = 0.8 * old + 0.2 * new if name.startswith("encoder.") else new
                np.testing.assert_allclose(after[f"{part}/{name}"], wanted, rtol=1e-5, atol=1e-7, err_msg=name)
        assert after["optimizer/steps"] == 0
        assert before["optimizer/steps"] == 3
        first = {"square_average": 1.0}
        for name in after:
            if name.startswith("optimizer/") and name != "optimizer/steps":
                assert (after[name] == first.get(name.split("/")[1], 0.0)).all(), name
        agent, seen = found[1], game.seen(3)
        q = agent._network.network({name: torch.from_numpy(value) for name, value in seen.items()})
        assert agent.expected_returns(seen) == pytest.approx(q.max(dim=1).values.detach().numpy(), rel=1e-4)
    finally:
        game.close()


@pytest.mark.parametrize("name", ["rainbow", "bbf"])
def test_resets_come_every_period_until_their_end_and_a_resume_repeats_them(name: str) -> None:
    game = Game(name, "vector", "discrete", reset_period_updates=2, reset_until_updates=5)
    try:
        straight = DQN(game.spec, game.config.agent, seed=7)
        steps, batches = [], game.batches(8)
        for made, batch in enumerate(batches):
            if made == 3:
                resumed = DQN(game.spec, game.config.agent, seed=99)
                resumed.load_state_dict(straight.state_dict())
            straight.update(straight.prepare(batch))
            steps.append(int(straight.state_dict()["optimizer/steps"]))
        assert steps == [1, 0, 1, 0, 1, 2, 3, 4]
        for batch in batches[3:]:
            resumed.update(resumed.prepare(batch))
        one, two = straight.state_dict(), resumed.state_dict()
        assert all(np.array_equal(one[part], two[part]) for part in one)
    finally:
        game.close()


# BBF


def test_actors_are_given_the_target_and_the_learner_learns_all_the_same() -> None:
    game = Game("bbf", "vector", "discrete")
    try:
        agent, plain = (
            DQN(game.spec, override(game.config, {"target_acts": acts}).agent, seed=3) for acts in (True, False)
        )
        for batch in game.batches(3):
            for one in (agent, plain):
                one.update(one.prepare(batch))
        target, online = agent.weights(), plain.weights()
        assert target.keys() == online.keys()
        state, others = agent.state_dict(), plain.state_dict()
        assert all(np.array_equal(state[name], others[name]) for name in state)
        for name, value in target.items():
            np.testing.assert_array_equal(value, state[f"target/{name}"])
            np.testing.assert_array_equal(online[name], state[f"online/{name}"])
            assert not np.array_equal(value, online[name]), name
        actor = DQN(game.spec, game.config.agent, seed=99)
        actor.load(target)
        seen = {name: torch.from_numpy(value) for name, value in game.seen(3).items()}
        z = agent._network.target(seen)
        q = agent._returns.means(agent._returns.read(z)).max(dim=1).values * agent._normalizer.unit
        np.testing.assert_allclose(actor.expected_returns(game.seen(3)), q.detach().numpy(), rtol=1e-5)
    finally:
        game.close()


def test_bbf_learns_through_resets_by_its_slow_target(tmp_path: Path) -> None:
    own = {"reset_period_updates": 200, "reset_until_updates": 400, "horizon_updates": 50, "n_step": 1}
    horizons = {"n_step_start": 4, "gamma_start": 0.2, "gamma": 0.5, "v_min": 0.0, "v_max": 2.0}
    speed = {"polyak": 0.05, "hidden": (32,), "learning_rate": 1e-2, "updates_per_step": 1.0, "min_size": 100}
    config = run_of("bbf", epsilon=0.2, batch_size=16, **own, **horizons, **speed)
    run = apexrl.train(
        config, show=False, serial=True, env_steps=1_000, seed=1, eval_episodes=20, eval_period_seconds=3600.0,
        stop_at_return=None, out=str(tmp_path),
    )  # fmt: skip
    assert run.summary["updates"] > 800  # half of them behind the second reset
    assert run.summary["last_weights_return"] == STEPS


# Runs


@pytest.mark.parametrize("name", ["apex", pytest.param("seed", marks=pytest.mark.long)])
def test_a_run_with_resets_draws_what_the_agent_says_and_learns(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[tuple[int, float]] = []
    sample: Callable[..., Any] = Replay.sample

    def noted(*given: Any, n_step: int, gamma: float, **named: Any) -> Any:
        batch = sample(*given, n_step=n_step, gamma=gamma, **named)
        drawn.append((n_step, gamma))
        assert batch.data["discount"].max() <= gamma + 1e-6
        return batch

    monkeypatch.setattr(Replay, "sample", noted)
    horizons = {"anneal_horizon": True, "n_step_start": 4, "n_step": 1, "gamma_start": 0.2, "gamma": 0.5}
    resets = {"reset_period_updates": 100, "reset_until_updates": 200, "horizon_updates": 50}
    config = run_of("dqn", hidden=(32,), learning_rate=1e-2, epsilon=0.2, updates_per_step=0.5, **horizons, **resets)
    run = apexrl.train(
        config, show=False, topology=name, serial=True, env_steps=1_000, seed=1, eval_episodes=20,
        eval_period_seconds=3600.0, stop_at_return=None, out=str(tmp_path),
    )  # fmt: skip
    assert len(drawn) > 300
    assert drawn[0] == drawn[100] == drawn[200] == (4, pytest.approx(0.2))
    assert drawn[99] == drawn[300] == (1, pytest.approx(0.5))
    assert run.summary["last_weights_return"] == STEPS


@pytest.mark.parametrize("changes", [{"reset_period_updates": 9}, {"anneal_horizon": True}], ids=str)
def test_who_cannot_reset_together_refuses(changes: dict[str, Any]) -> None:
    vectors = {"q/online": 320, "q/target": 320, "q/optimizer/steps": 1}
    seen = Probe(SPEC, {}, 1280, Item(), ("gradients", "apply", "networks"), vectors, {"w": Place("q", 0, (10, 32))})
    config = override(with_agent(Config(), "dqn"), changes)
    with pytest.raises(ConfigError, match=r"several --learners would each reset .* or --learners 1"):
        topology("apex")(override(config, {"learners": 2}), seen)
    with pytest.raises(ConfigError, match=r"parameter servers own slices .* use --topology apex"):
        topology("gorila")(override(config, {"topology": "gorila"}), seen)
    with pytest.raises(ConfigError, match=r"no target: actors could not choose by one. Set --no-target-acts, or"):
        topology("gorila")(override(config, {"topology": "gorila", "target_acts": True}), seen)
    assert not topologies.runs("gorila", "bbf")
    one = topology("apex")(config, seen)
    if config.agent.anneal_horizon:
        with pytest.raises(ConfigError, match=r"shards of a replay .* set --no-anneal-horizon, or run without Ray"):
            sampling(one)
    else:
        assert sampling(one)
