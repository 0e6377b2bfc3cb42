"""Agents on environments whose texts, sequences, graphs and hybrid actions are needed: they learn, and are exported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import apexrl
from apexrl.agents import agent_class, with_agent
from apexrl.config import Config, EnvConfig
from apexrl.config.convert import override
from apexrl.envs import env_spec, make_vector
from apexrl.evaluation.loaded_agent import LoadedAgent
from space_envs import STEPS, Bag, Beside, Glyphs, Level, Linked, Mixed, Nested, Pair, Told

SMALL: dict[str, Any] = {
    "stop_at_return": None,
    "eval_episodes": 20,
    "learner_threads": 1,
    "max_sequence_length": 8,
    "hidden": (64,),
    "seed": 1,
}
Q: dict[str, Any] = {
    "env_steps": 4_000,
    "min_size": 200,
    "updates_per_step": 0.5,
    "learning_rate": 2e-3,
    "batch_size": 32,
    "target_period_updates": 100,
    "n_step": 1,
    "gamma": 0.0,
}
SOFT: dict[str, Any] = {name: value for name, value in Q.items() if name != "target_period_updates"}
SLOW_POLICY: dict[str, Any] = {**SOFT, "env_steps": 2_500, "policy_learning_rate": 3e-4, "temperature": 0.2}
"""At the critics' rate the policy is certain of one action before they know the others."""
SAC: dict[str, Any] = {
    "env_steps": 2_500,
    "min_size": 300,
    "learning_rate": 2e-3,
    "batch_size": 64,
    "reward_scale": 1.0,
}
DIAL: dict[str, Any] = {**SAC, "gamma": 0.0, "env_kwargs": {"dial": True}}
UNROLLS: dict[str, Any] = {
    "env_steps": 16_000,
    "unroll_length": 16,
    "batch_size": 8,
    "learning_rate": 3e-3,
    "epochs": 4,
    "minibatches": 2,
    "gamma": 0.0,
}


@pytest.mark.long
@pytest.mark.parametrize(
    ("env", "agent", "topology", "settings", "least"),
    [
        (Told, "double_dqn", "apex", Q, 6.0),
        (Told, "double_dqn", "seed", Q, 6.0),
        (Told, "sac", "apex", DIAL, 6.0),
        (Told, "sac", "seed", DIAL, 6.0),
        (Told, "appo", "sample_factory", UNROLLS, 6.0),
        (Told, "ppo", "impala", UNROLLS, 6.0),
        (Told, "ppo", "seed", UNROLLS, 6.0),
        (Bag, "double_dqn", "apex", Q, 6.0),
        (Bag, "double_dqn", "seed", Q, 6.0),
        (Bag, "sac", "apex", {**DIAL, "env_steps": 1_500}, 6.0),
        (Bag, "discrete_sac", "seed", {**SOFT, "env_steps": 3_000}, 6.0),
        (Mixed, "double_dqn", "apex", Q, 6.0),
        (Mixed, "double_dqn", "seed", Q, 6.0),
        (Mixed, "appo", "sample_factory", UNROLLS, 6.0),
        (Mixed, "ppo", "seed", UNROLLS, 6.0),
        (Linked, "double_dqn", "apex", Q, 6.0),
        (Linked, "ppo", "seed", UNROLLS, 4.0),
        (Linked, "ppo", "impala", UNROLLS, 4.0),
        (Linked, "dueling_dqn", "seed", Q, 6.0),
        (Linked, "sac", "apex", {**DIAL, "env_steps": 1_000}, 6.0),
        (Linked, "sac", "seed", {**DIAL, "env_steps": 1_000}, 6.0),
        (Beside, "sac", "apex", DIAL, 6.0),
        (Beside, "sac", "seed", DIAL, 6.0),
        (Level, "double_dqn", "apex", {**Q, "env_steps": 2_500}, 6.0),
        (Level, "double_dqn", "seed", {**Q, "env_steps": 2_500}, 6.0),
        (Level, "ppo", "impala", UNROLLS, 6.0),
        (Level, "appo", "sample_factory", UNROLLS, 6.0),
        (Level, "discrete_sac", "apex", SLOW_POLICY, 6.0),
        (Level, "discrete_sac", "seed", SLOW_POLICY, 6.0),
        (Level, "sac", "apex", {**DIAL, "env_steps": 3_000, "image_units": 64, "batch_size": 32}, 4.0),
        (Nested, "double_dqn", "apex", Q, 6.0),
        (Nested, "dueling_dqn", "seed", Q, 6.0),
        (Nested, "discrete_sac", "apex", SLOW_POLICY, 6.0),
        (Nested, "sac", "seed", {**DIAL, "env_steps": 1_500}, 6.0),
        (Nested, "appo", "sample_factory", UNROLLS, 6.0),
        (Nested, "ppo", "impala", UNROLLS, 6.0),
        (Nested, "ppo", "seed", UNROLLS, 6.0),
        (Mixed, "ppo", "impala", {"env_steps": 20_000}, 6.0),
        (Bag, "ppo", "impala", {"env_steps": 20_000}, 6.0),
        (Bag, "ppo", "seed", UNROLLS, 6.0),
        (Bag, "appo", "sample_factory", UNROLLS, 6.0),
        (Linked, "appo", "sample_factory", {"env_steps": 20_000, "serial": False}, 6.0),
        (Glyphs, "ppo", "seed", {"env_steps": 12_000, "serial": False}, 5.0),
        (Pair, "ppo", "impala", {"env_steps": 8_000}, 2.0),
        (Pair, "ppo", "sample_factory", {"env_steps": 12_000, "serial": False}, 2.0),
        (Pair, "ppo", "seed", {"env_steps": 12_000}, 2.0),
        (Pair, "sac", "apex", SAC, 3.0),
        (Pair, "sac", "seed", SAC, 3.0),
    ],
    ids=lambda one: one if isinstance(one, str) else getattr(one, "__name__", ""),
)
def test_what_is_shown_is_used(
    env: Any, agent: str, topology: str, settings: dict[str, Any], least: float, tmp_path: Path
) -> None:
    """Whoever does not read it gets a third of ``STEPS`` at most; random actions of ``Pair`` get less than nothing."""
    kwargs = settings.get("env_kwargs", {})
    wanted = {**SMALL, "serial": True, **settings, "out": str(tmp_path)}
    run = apexrl.train(env=env, agent=agent, topology=topology, show=False, **wanted)
    assert run.summary["final_eval_return"] >= least
    made = env(**kwargs)
    observation, _ = made.reset(seed=3)
    total = 0.0
    for _ in range(STEPS):
        action = run.agent.act(observation)
        assert made.action_space.contains(action)
        observation, reward, *_ = made.step(action)
        total += float(reward)
    assert total > 0.0


@pytest.mark.long
@pytest.mark.parametrize(("env", "agent"), [(Glyphs, "dueling_dqn"), (Linked, "ppo"), (Pair, "sac")])
def test_onnx_acts_as_the_agent(env: Any, agent: str, tmp_path: Path) -> None:
    """Inputs are the stored fields by name; each entry of a dict of actions is an output."""
    import onnxruntime

    vector = make_vector(EnvConfig(env=env, max_sequence_length=80), 5, seed=2)
    config = override(with_agent(Config(), agent), {"hidden": (8,), "image_units": 8}).agent
    loaded = LoadedAgent(agent_class(agent)(vector.spec, config, "cpu", 0), vector.spec)
    shapes = loaded.export(tmp_path / "agent.onnx")
    assert list(shapes["inputs"]) == list(vector.spec.observation)
    seen = vector.reset()
    vector.close()
    session = onnxruntime.InferenceSession(tmp_path / "agent.onnx", providers=["CPUExecutionProvider"])
    raw = {name: array + vector.spec.starts.get(name, 0) for name, array in seen.items()}
    out = dict(zip(shapes["outputs"], session.run(None, raw), strict=True))
    actions = loaded.agent.act(seen, None, np.zeros(5, np.float32), greedy=True).actions
    wanted = vector.spec.action.in_form(vector.spec.action.as_counted(np.asarray(actions)))
    if env is Pair:
        assert list(out) == ["action/lever", "action/how/far"]
        np.testing.assert_array_equal(out["action/lever"], wanted["lever"])
        np.testing.assert_allclose(out["action/how/far"], wanted["how"]["far"], atol=1e-5)
    else:
        np.testing.assert_array_equal(out["action"], wanted)


@pytest.mark.long
def test_hybrid_actions_are_exported_to_be_drawn(tmp_path: Path) -> None:
    spec = env_spec(Pair.observation_space, Pair().action_space)
    for agent in ("sac", "ppo"):
        config = override(with_agent(Config(), agent), {"hidden": (8,)}).agent
        loaded = LoadedAgent(agent_class(agent)(spec, config, "cpu", 0), spec)
        shapes = loaded.export(tmp_path / f"{agent}.onnx", actions="sampled")
        assert shapes["inputs"]["normal"] == ["float32", ["batch", 2]]


@pytest.mark.parametrize(("env", "agent"), [("Blackjack-v1", "dueling_dqn"), (Bag, "r2d2")])
def test_a_run_needs_no_wrapper(env: Any, agent: str, tmp_path: Path) -> None:
    settings = {**SMALL, "env_steps": 400, "min_size": 20, "batch_size": 8, "eval_episodes": 2, "serial": True}
    run = apexrl.train(env=env, agent=agent, show=False, **settings, out=str(tmp_path))
    assert run.summary["updates"] > 3
    assert np.isfinite(run.summary["final_eval_return"])


def test_minigrids_mission_is_read(tmp_path: Path) -> None:
    vector = make_vector(EnvConfig(env="minigrid:MiniGrid-GoToDoor-5x5-v0"), 2, seed=0)
    seen = vector.reset()
    vector.close()
    for row in range(2):
        length = int(seen["observation/mission/length"][row])
        assert bytes(seen["observation/mission"][row, :length]).decode().startswith("go to the ")
    config = with_agent(Config(), "ppo").agent
    agent = agent_class("ppo")(vector.spec, config, "cpu", 0)
    assert agent.act(seen, None, np.zeros(2, np.float32)).actions.shape == (2,)
