"""What changes over a run, by the environment steps of the whole run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from apexrl.agents import AGENTS, agent_class, with_agent
from apexrl.agents.dqn import DQN
from apexrl.agents.exploration import slot_exploration
from apexrl.config import Config
from apexrl.config.convert import check_values, override
from apexrl.errors import ConfigError
from apexrl.launch import launch
from apexrl.protocols import Item
from apexrl.replay import Replay
from apexrl.roles.schedules import Beta, Exploration, ScheduleMetrics
from apexrl.run.metrics import read_rows
from apexrl.spec import ActionSpec, EnvSpec, Field

BOX = ActionSpec((1,), "float32", low=-np.ones(1, np.float32), high=np.ones(1, np.float32))


def spec_for(name: str) -> EnvSpec:
    action = ActionSpec(n=2) if "Discrete" in AGENTS[name].needs else BOX
    return EnvSpec({"observation": Field((3,), "float32")}, action)


@pytest.mark.parametrize("name", ["dqn", "r2d2", "sac", "discrete_sac", "crossq", "td3", "ppo"])
def test_every_step_size_of_an_agent_falls_to_its_share(name: str) -> None:
    small = {"hidden": (4,), "recurrent_units": 4, "anneal": True, "learning_rate": 0.1, "learning_rate_end": 0.2}
    critics = (
        {"critic_hidden": (4,), "policy_learning_rate": 0.01} if "critic" in str(AGENTS[name].reads).lower() else {}
    )
    config = override(with_agent(Config(), name), small | critics)
    agent, other = (agent_class(name)(spec_for(name), config.agent, "cpu", 0) for _ in range(2))
    first = {group: network.optimizer.learning_rate for group, network in agent.networks.items()}
    assert 0.1 in first.values()
    for progress, share in ((0.0, 1.0), (0.5, 0.6), (1.0, 0.2)):
        agent.anneal(progress)
        for group, network in agent.networks.items():
            assert network.optimizer.learning_rate == pytest.approx(share * first[group])
        other.anneal(progress)  # who only takes gradients has no optimizer, and is to know the step size all the same
        sizes = {group: network.learning_rate for group, network in other.networks.items()}
        assert sizes == pytest.approx({group: share * size for group, size in first.items()})
        assert not any("optimizer" in vars(network) for network in other.networks.values())
    for group, network in other.networks.items():
        assert network.optimizer.learning_rate == pytest.approx(0.2 * first[group])


def counted(steps: int) -> Any:
    counts = Counter(env_steps=steps)
    return SimpleNamespace(total=counts.__getitem__, counts=counts)


@pytest.mark.parametrize(("steps", "beta"), [(0, 0.4), (250, 0.55), (333, 0.6), (1000, 1.0), (1200, 1.0)])
def test_beta_is_at_its_end_when_the_run_is(steps: int, beta: float) -> None:
    config = override(Config(), {"beta": 0.4, "beta_end": 1.0, "env_steps": 1000})
    assert Beta(counted(steps), config)() == pytest.approx(beta)
    assert Beta(counted(steps), override(config, {"beta_end": 0.0}))() == 0.4
    assert Beta(counted(steps), override(config, {"alpha": 0.0}))() == 0.0  # only age may count, and is meant to


@pytest.mark.parametrize(("steps", "left"), [(0, 1.0), (25, 0.75), (100, 0.0), (200, 0.0)])
def test_exploration_falls_from_1_to_the_ladder(steps: int, left: float) -> None:
    config = override(Config(), {"exploration_steps": 100, "sigma": 0.2})
    for action in (ActionSpec(n=2), BOX):
        ladder = np.concatenate([slot_exploration(action, config.actor, slot, 5, 3) for slot in (1, 4)])
        found = Exploration(counted(steps), config, action, (1, 4), 5, 3)()
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, ladder if action.box else left + (1 - left) * ladder, rtol=1e-6)


def test_what_ends_with_the_run_needs_its_end() -> None:
    for name, value in (("anneal", True), ("beta_end", 1.0)):
        with pytest.raises(ConfigError, match="set --env-steps"):
            check_values(override(Config(), {name: value}))
        check_values(override(Config(), {name: value, "env_steps": 10}))


def test_schedules_may_take_longer_than_the_run() -> None:
    config = override(Config(), {"beta": 0.4, "beta_end": 1.0, "env_steps": 500, "schedule_env_steps": 1000})
    assert Beta(counted(500), config)() == pytest.approx(0.7)
    check_values(override(config, {"env_steps": 0, "anneal": True}))  # which another limit ends


def test_a_host_that_is_told_of_the_run_goes_by_its_steps() -> None:
    config = override(Config(), {"exploration_steps": 100, "beta": 0.4, "beta_end": 1.0, "env_steps": 100})
    here = counted(10)
    explored = Exploration(here, config, ActionSpec(n=2), [0], 1, 1)
    rung = slot_exploration(ActionSpec(n=2), config.actor, 0, 1, 1)
    for run, left in ((0, 0.9), (60, 0.4)):
        here.counts["run_env_steps"] = run
        np.testing.assert_allclose(explored(), left + (1 - left) * rung, rtol=1e-6)
        assert Beta(here, config)() == pytest.approx(0.4 + (1 - left) * 0.6)


@pytest.mark.parametrize("name", ["apex", "gorila", "seed"])
def test_a_run_acts_learns_and_draws_by_its_schedules(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    explored: list[float] = []
    betas: list[float] = []

    def noting(method: Callable[..., Any], note: Callable[..., None]) -> Callable[..., Any]:
        def noted(*given: Any, **named: Any) -> Any:
            note(*given, **named)
            return method(*given, **named)

        return noted

    def acting(agent: Any, seen: Any, state: Any, exploration: Any, greedy: bool = False) -> None:
        if not greedy:
            explored.append(float(exploration[0]))

    monkeypatch.setattr(DQN, "act", noting(DQN.act, acting))
    monkeypatch.setattr(Replay, "sample", noting(Replay.sample, lambda *_, beta, **__: betas.append(beta)))
    config = replace(with_agent(Config(name="run", out=str(tmp_path), serial=True), "dqn"), topology=name)
    run = {"env": "CartPole-v1", "env_steps": 400, "actors": 1, "eval_episodes": 1, "eval_period_seconds": 100.0}
    learning = {"hidden": (8,), "min_size": 32, "batch_size": 8, "capacity": 400, "updates_per_step": 0.25}
    schedules = {"epsilon": 0.1, "epsilon_alpha": 0.0, "exploration_steps": 200, "beta": 0.4, "beta_end": 1.0}
    schedules |= {"anneal": name != "gorila", "learning_rate": 1e-3}
    own = {"insert_band": 0.5} | ({"replay": "local"} if name == "gorila" else {})
    wanted: dict[str, Any] = {**run, **learning, **schedules, **own}
    launch(override(config, wanted))
    assert explored[0] == 1.0
    assert explored == sorted(explored, reverse=True)
    assert explored[-1] == pytest.approx(0.1)
    assert any(0.4 < epsilon < 0.6 for epsilon in explored)
    assert betas == sorted(betas)
    assert betas[0] < 0.6
    assert betas[-1] > 0.9
    told = read_rows(next(tmp_path.glob("*/metrics.jsonl")))[-1]
    assert told["agent/epsilon_mean"] == told["agent/epsilon_max"] == pytest.approx(0.1)
    assert 0.6 < told["agent/beta"] <= 1.0
    assert told["agent/learning_rate"] <= 1e-3 * (0.5 if name != "gorila" else 1.0)


def test_metrics_of_schedules_are_of_agents_that_have_them() -> None:
    unrolls, transitions = Item("unroll", 5), Item()
    discrete = ActionSpec(n=2)

    def told(agent: str, action: ActionSpec, item: Item, topology: str = "apex", **settings: Any) -> dict[str, float]:
        small = {"actors": 2, "envs_per_actor": 2, "epsilon": 0.4, "exploration_steps": 100, **settings}
        config = replace(override(with_agent(Config(), agent), small), topology=topology)
        return ScheduleMetrics(counted(50), config, action, item).beside({"loss": 1.0})

    rungs = 0.5 + 0.5 * np.array([0.4 ** (1 + 7 * i / 3) for i in range(4)])
    expected = {"loss": 1.0, "epsilon_mean": rungs.mean(), "epsilon_max": rungs.max(), "beta": 0.4}
    assert told("dqn", discrete, transitions, epsilon_alpha=7.0, beta=0.4) == pytest.approx(expected)
    assert told("dqn", discrete, transitions, alpha=0.0).keys() == {"loss", "epsilon_mean", "epsilon_max"}
    assert told("dqn", discrete, transitions, "offline").keys() == {"loss", "beta"}
    assert told("pqn", discrete, unrolls, "impala").keys() == {"loss", "epsilon_mean", "epsilon_max"}
    assert told("ppo", discrete, unrolls, "impala").keys() == {"loss"}
    assert told("td3", BOX, transitions, alpha=0.6).keys() == {"loss", "beta"}
    nothing = ScheduleMetrics(counted(50), with_agent(Config(), "dqn"), discrete, transitions)
    assert nothing.beside({}) == {}  # an update that measures nothing
