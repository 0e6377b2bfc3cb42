"""Whole runs of an agent that learns from sequences: in lock-step, in processes, over hosts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from host_rig import RUN, Places, wait_for

from apexrl import presets
from apexrl.agents import agent_class
from apexrl.config import Config
from apexrl.config.convert import override
from apexrl.launch import launch
from apexrl.replay import Replay
from apexrl.roles.actor import VERSION
from apexrl.run import checkpoint
from apexrl.run.folder import RunFolder

SMALL: dict[str, Any] = {
    "hidden": (8,),
    "recurrent_units": 6,
    "sequence_length": 8,
    "sequence_stride": 4,
    "burn_in": 6,
    "batch_size": 8,
    "min_size": 50,
    "updates_per_step": 0.0625,
    "envs_per_actor": 3,
    "eval_episodes": 2,
    "eval_envs": 2,
    "alpha": 1.0,
    "stop_at_return": None,
    "save_replay": True,
    "target_period_updates": 20,
}
TRANSFORMER = {"agent": "dueling_dqn", "memory": "transformer", "memory_heads": 2, "memory_context": 5}
STILL = {"min_size": 1_000_000, "capacity": 2_000_000}  # nothing is learned


def config_for(tmp_path: Path, name: str, **changes: Any) -> Config:
    settings = {**SMALL, "out": str(tmp_path), "name": name, "env_steps": 3000, **changes}
    return override(
        presets.with_names(presets.preset("position-cartpole").config, "", settings.get("agent", "")), settings
    )


def flags_of(settings: dict[str, Any]) -> list[str]:
    words: list[str] = []
    for name, value in settings.items():
        flag = "--" + name.replace("_", "-")
        many = value if isinstance(value, tuple) else (value,)
        words += [flag] if value is True else [flag, *map(str, many)]
    return words


def assert_sequences_are_whole(folder: RunFolder) -> None:
    """Nothing was learned, so every sequence must lead the first network through the states that its actor had: from
    the stored state and the observations the learner computes the very priorities that actors computed."""
    config, spec = folder.config(), folder.spec()
    found = checkpoint.load_latest(folder.checkpoints)
    assert spec is not None
    assert found is not None
    agent = agent_class(config.agent.agent)(spec, config.agent)
    agent.load_state_dict(found.arrays)
    assert agent.updates == 0
    with Replay.load(folder.replay_path) as replay:
        replay.set_limiter(min_size=1)
        assert len(replay) > 300
        batch = replay.sample(400)
    steps = batch.data["mask"]
    assert set(batch.data[VERSION][steps].tolist()) == {1}
    begins = batch.data["first"][np.arange(400), steps.argmax(axis=1)]
    states = (batch.data[name].any(axis=1) for name in ("lstm_h", "lstm_c", "transformer_steps") if name in batch.data)
    np.testing.assert_array_equal(begins, ~np.any(list(states), axis=0))
    assert 0 < begins.sum() < 400
    priorities = agent.gradients(agent.prepare(batch)).priorities
    ratio = priorities / batch.probabilities
    np.testing.assert_allclose(ratio, np.median(ratio), rtol=1e-3)
    assert np.std(priorities) > 0.02 * np.mean(priorities)


@pytest.mark.parametrize("changes", [{"vector": "sync"}, {**TRANSFORMER, "vector": "threads"}])
def test_sequences_arrive_whole_from_processes(tmp_path: Path, changes: dict[str, Any]) -> None:
    summary = launch(config_for(tmp_path, "local", **changes, **STILL))
    assert summary["updates"] == 0
    assert_sequences_are_whole(RunFolder(tmp_path / "local"))


@pytest.mark.long
@pytest.mark.parametrize("changes", [{}, TRANSFORMER])
def test_sequences_arrive_whole_from_other_hosts(tmp_path: Path, changes: dict[str, Any]) -> None:
    with Places("loopback", 2, tmp_path) as places:
        settings = {**SMALL, **STILL, **changes, "actor_slots": 2}
        learner = places.learner("position-cartpole", *flags_of(settings))
        actors = [places.actor(host, "--actors", "1") for host in (0, 1)]
        wait_for("sequences of both", lambda: sum(member.digest.sent_items for member in places.look().alive) > 700)
        assert places.apexrl("stop", "--run", RUN).finish() == 0
        assert [one.finish() for one in (learner, *actors)] == [0, 0, 0]
        summary = places.summary()
        assert summary["updates"] == 0
        assert summary["hosts"]["missing"] == 0
        assert_sequences_are_whole(RunFolder(places.run_folder))


@pytest.mark.long
def test_it_learns_from_other_hosts(tmp_path: Path) -> None:
    with Places("loopback", 1, tmp_path) as places:
        settings = {**SMALL, "actor_slots": 1, "env_steps": 2000}
        learner = places.learner("position-cartpole", *flags_of(settings))
        actor = places.actor(0, "--actors", "1")
        assert [one.finish() for one in (learner, actor)] == [0, 0], learner.said + actor.said
        summary = places.summary()
    assert summary["updates"] > 50
    assert summary["samples_per_insert"] == pytest.approx(2.0, rel=0.3)


def arrays_of(config: Config, **how: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    summary = launch(config, **how)
    found = checkpoint.load_latest(Path(config.out) / config.name / "checkpoints")
    assert found is not None
    return summary, dict(found.arrays)


@pytest.mark.parametrize(
    "past", [pytest.param(False, id="", marks=pytest.mark.long), pytest.param(True, id="with its past")]
)
def test_lock_step_runs_are_equal_to_the_last_bit(tmp_path: Path, past: bool) -> None:
    lock_step: dict[str, Any] = {"serial": True, "env_steps": 1500, "eval_period_seconds": 0.05}
    runs = [arrays_of(config_for(tmp_path, name, last_action_reward=past, **lock_step)) for name in ("one", "two")]
    (one, first), (two, second) = runs
    assert one["updates"] > 50
    for name in ("env_steps", "updates", "episodes", "policy_lag", "final_eval_return"):
        assert one[name] == two[name]
    assert first.keys() == second.keys()
    assert all(np.array_equal(first[name], second[name]) for name in first)
    other, third = arrays_of(config_for(tmp_path, "other", last_action_reward=past, **lock_step, seed=2))
    assert other["updates"] > 50
    assert not all(np.array_equal(first[name], third[name]) for name in first)


def test_a_resumed_run_goes_on_with_its_sequences(tmp_path: Path) -> None:
    config = config_for(tmp_path, "resumed", serial=True, env_steps=1500)
    before = launch(config)
    after = launch(override(config, {"env_steps": 2500}), resume=tmp_path / "resumed")
    updates = after["updates"] - before["updates"]
    assert after["env_steps"] >= 2500
    assert updates > 30
