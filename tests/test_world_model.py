"""The example of an agent that plans in a learned model of its environment, trained from outside the package."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from apexrl.config import AgentConfig
from apexrl.errors import AgentError
from apexrl.run.folder import RunFolder
from apexrl.spec import ActionSpec, EnvSpec, Field

EXAMPLE = Path(__file__).parents[1] / "examples" / "world_model"
AGENT = "apexrl_world_model.agent:WorldModelAgent"
BOX = ActionSpec((2,), "float32", low=np.array([-1, 0], np.float32), high=np.array([1, 4], np.float32))


def agent(action: ActionSpec, seed: int = 0, **settings: Any) -> Any:
    from apexrl_world_model.agent import WorldModelAgent

    spec = EnvSpec({"observation": Field((3,), "float32")}, action)
    return WorldModelAgent(spec, AgentConfig(agent_settings=settings), "cpu", seed)


def batch(action: ActionSpec, horizon: int = 3) -> Any:
    rng = np.random.default_rng(1)
    rows = 16
    actions = rng.integers(0, 2, (rows, horizon)) if action.discrete else rng.random((rows, horizon, 2), np.float32)
    mask = np.arange(horizon) < rng.integers(1, horizon + 1, (rows, 1))
    seen = rng.standard_normal((rows, horizon + 1, 3), np.float32)
    reward = rng.random((rows, horizon), np.float32)
    data = {"observation": seen, "action": actions, "reward": reward, "discount": 0.9 * mask, "mask": mask}
    return SimpleNamespace(data={**data, "discount": data["discount"].astype(np.float32)})


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLE))


def test_numbers_survive_their_distributions() -> None:
    from apexrl_world_model.networks import cross_entropy, expected, two_hot

    numbers = torch.tensor([-900.0, -1.0, 0.0, 0.3, 5.0, 2000.0])
    bins = two_hot(numbers)
    assert torch.allclose(bins.sum(-1), torch.ones(6))
    assert ((bins > 0).sum(-1) <= 2).all()
    assert torch.allclose(expected(torch.log(bins + 1e-12)), numbers, rtol=0.01, atol=0.01)
    wrong, right = cross_entropy(torch.log(bins[:1] + 1e-6), numbers[[5, 0]])
    assert wrong > right


@pytest.mark.parametrize("action", [BOX, ActionSpec(n=2)], ids=["box", "discrete"])
def test_a_state_goes_on_to_the_last_bit(action: ActionSpec) -> None:
    first, second = agent(action, 1), agent(action, 2)
    first.update(batch(action))
    second.load_state_dict({name: array.copy() for name, array in first.state_dict().items()})
    assert first.update(batch(action)).metrics == second.update(batch(action)).metrics
    seen = {"observation": np.ones((4, 3), np.float32)}
    for exploration in (0.0, 0.5, np.inf):
        acted, again = (one.act(seen, None, np.full(4, exploration, np.float32)) for one in (first, second))
        np.testing.assert_array_equal(acted.actions, again.actions)
        if action.discrete:
            assert set(acted.actions) <= {0, 1}
        else:
            assert (acted.actions >= BOX.low).all()
            assert (acted.actions <= BOX.high).all()


def test_a_plan_finds_the_rewarded_action() -> None:
    """The model is told that the second action is worth 1 and the first nothing."""
    planner = agent(ActionSpec(n=2))
    model = planner._model
    model.expected_reward = lambda z, action: action[..., 1]
    seen = {"observation": np.zeros((5, 3), np.float32)}
    acted = planner.act(seen, None, np.zeros(5, np.float32), greedy=True)
    assert acted.actions.tolist() == [1] * 5
    assert (acted.state["plan"][..., 1] > acted.state["plan"][..., 0]).all()


def test_what_it_does_not_take_is_refused() -> None:
    with pytest.raises(AgentError, match="Discrete actions, or a Box with finite bounds"):
        agent(ActionSpec((2,), nvec=(2, 3)))
    with pytest.raises(AgentError, match="multiple of 8, not 12"):
        agent(BOX, latent_numbers=12)


def trained(folder: Path, *words: str, timeout: float = 120) -> RunFolder:
    path = os.pathsep.join([str(EXAMPLE), *(entry for entry in sys.path if entry)])
    done = subprocess.run(
        [sys.executable, "-m", "apexrl.cli", *words],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}, cwd=folder, capture_output=True, text=True,
        timeout=timeout, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return RunFolder.open(folder / "runs" / "run")


@pytest.mark.long
def test_it_trains_and_goes_on(tmp_path: Path) -> None:
    words = ["--agent", AGENT, "--plan-samples", "32", "--model-units", "16", "--serial", "--min-size", "60"]
    short = ["--batch-size", "16", "--env-steps", "120", "--eval-episodes", "1", "--name", "run"]
    assert trained(tmp_path, "train", "--env", "CartPole-v1", *words, *short).summary()["updates"] > 0
    more = ["resume", "runs/run", "--env-steps", "160", "--trust", "apexrl_world_model"]
    assert trained(tmp_path, *more).summary()["env_steps"] >= 160


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("env", "goal"), [("Pendulum-v1", -200), ("CartPole-v1", 475)])
def test_it_solves(env: str, goal: float, tmp_path: Path) -> None:
    flags = (EXAMPLE / "README.md").read_text(encoding="utf-8").partition("--agent world_model")[2].partition("```")[0]
    words = ["--env", env, "--agent", AGENT, *flags.replace("\\\n", " ").split(), "--seed", "1", "--name", "run"]
    assert trained(tmp_path, "train", *words, timeout=3600).summary()["final_eval_return"] >= goal
