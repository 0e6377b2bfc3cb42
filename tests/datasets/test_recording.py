"""A run's agent records a dataset, which is shown, estimated from and learned from; and its replay is exported."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from corridor_data import CORRIDOR, corridor_episodes, write_corridor

from apexrl.agents import agent_class, with_agent
from apexrl.cli.main import main
from apexrl.config import Config
from apexrl.config.convert import override
from apexrl.datasets.episode import Episode
from apexrl.datasets.filling import filled_replay
from apexrl.datasets.minari_files import Dataset, write
from apexrl.envs import env_spec, make_vector
from apexrl.envs.spaces import flatten_observation, observation_leaves
from apexrl.errors import ConfigError
from apexrl.evaluation.loaded_agent import LoadedAgent
from apexrl.evaluation.recording import pieces, played, saved
from apexrl.launch import launch
from apexrl.replay import Replay
from apexrl.run.folder import RunFolder
from apexrl.spec import Field

TRUST = ("--trust", "apexrl.envs.toy")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    out = tmp_path_factory.mktemp("runs")
    small: dict[str, Any] = {
        "env": CORRIDOR,
        "hidden": (8,),
        "batch_size": 16,
        "actors": 1,
        "envs_per_actor": 2,
        "n_step": 1,
        "capacity": 1000,
        "min_size": 50,
        "env_steps": 300,
        "serial": True,
        "save_replay": True,
        "eval_episodes": 2,
        "eval_envs": 2,
        "epsilon": 1.0,
        "gamma": 0.9,
    }
    launch(override(with_agent(Config(out=str(out), name="run"), "dqn"), small))
    return out / "run"


def test_a_run_records_and_the_dataset_tells_of_it(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    to = tmp_path / "recorded"
    words = ["dataset", "record", str(run), "--to", str(to), "--episodes", "7", "--epsilon", "0.5", *TRUST]
    assert main(words) == 0
    assert f"{to}: 7 episodes" in capsys.readouterr().out
    found = Dataset(str(to))
    assert (found.episodes, found.env, found.metadata["dataset_id"]) == (7, "Corridor-v0", "corridor/dqn-v0")
    assert found.metadata["algorithm_name"] == "dqn"
    for one in found:
        seen, way = one.observation["observation"], np.where(one.action == 1, 1, -1)
        np.testing.assert_array_equal(seen[1:-1], (seen[:-1] + way)[:-1])  # the corridor's own steps
        assert one.log_prob is not None
        assert set(np.round(np.exp(one.log_prob), 6)) <= {0.25, 0.75}
    assert main(["dataset", "show", str(to)]) == 0
    shown = capsys.readouterr().out
    assert "7 episodes" in shown
    assert "probabilities of actions: all" in shown
    assert main(["ope", str(run), "--dataset", str(to), "--updates", "5", "--json", *TRUST]) == 0
    told = json.loads(capsys.readouterr().out)
    assert {"fqe", "wis", "wpdis"} <= told.keys()
    assert told["gamma"] == 0.9
    assert told["updates_needed"] > 5
    assert told["dataset"]["low"] <= told["dataset"]["value"] <= told["dataset"]["high"]


def test_recorded_probabilities_multiply_to_those_of_episodes() -> None:
    """Also of an agent that explores by pink noise, by which an action resembles the one before it."""
    config = override(with_agent(Config(), "ppo"), {"env": CORRIDOR, "pink_noise": True, "eval_actions": "sampled"})
    with closing(make_vector(config.env, 1, 0)) as env:
        spec = env.spec
    loaded = LoadedAgent(agent_class("ppo")(spec, config.agent, "cpu", 0), spec, None)
    actions = [one.action for one in played(loaded, config, 200, 1)]
    same = np.concatenate([one[1:] == one[:-1] for one in actions])
    right = float(np.concatenate(actions).mean())
    assert abs(same.mean() - (right**2 + (1 - right) ** 2)) < 4 * 0.5 / np.sqrt(len(same))


def test_what_cannot_be_recorded_is_refused(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dataset"]) == 2
    assert main(["dataset", "record", str(run), "--to", str(tmp_path), *TRUST]) == 2
    assert "is there already" in capsys.readouterr().err
    assert main(["dataset", "record", str(run), "--to", str(tmp_path / "a"), "--episodes", "0", *TRUST]) == 2
    assert main(["ope", str(run), "--dataset", str(tmp_path / "none"), *TRUST]) == 2
    assert "there is no dataset at" in capsys.readouterr().err
    assert not (tmp_path / "a").exists()


def test_a_saved_replay_is_a_dataset(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    to = tmp_path / "exported"
    assert main(["dataset", "export", str(run), "--to", str(to), *TRUST]) == 0
    with Replay.load(RunFolder.open(run).replay_path) as replay:
        assert Dataset(str(to)).steps == len(replay)
    for one in Dataset(str(to)):
        seen = one.observation["observation"]
        way = np.where(one.action == 1, 1, -1)
        np.testing.assert_array_equal(seen[1:-1], (seen[:-1] + way)[:-1])
        assert (one.reward[:-1] == 0).all()  # only an exit pays, and it ends an episode
        assert bool(one.terminated[-1]) == (one.reward[-1] > 0)


@pytest.mark.parametrize(
    ("options", "clip", "text"),
    [
        ({"n_step": 3}, 0.0, r"transitions of 3 steps: .* Train with --n-step 1, or"),
        ({"n_step": 1}, 1.0, r"rewards clipped to 1: .* Train with --reward-clip 0, or"),
        ({"n_step": 3}, 1.0, r"transitions of 3 steps and rewards clipped to 1: .* --n-step 1 --reward-clip 0, or"),
        ({"kind": "unroll", "length": 4}, 0.0, r"holds unrolls: "),
    ],
)
def test_a_replay_of_other_items_is_refused(options: dict[str, Any], clip: float, text: str, tmp_path: Path) -> None:
    fields = {"observation": Field((), "int64"), "action": Field((), "int64")}
    with Replay(10, fields, **{"kind": "transition", **options}) as replay:
        replay.save(tmp_path / "replay")
    with pytest.raises(ConfigError, match=text):
        saved(tmp_path / "replay", override(Config(), {"reward_clip": clip}), tmp_path / "to")


def test_a_replay_without_discounts_is_refused(tmp_path: Path) -> None:
    """Every step would count as an end."""
    fields = {"observation": Field((), "int64"), "action": Field((), "int64")}
    with Replay(10, fields, kind="transition", n_step=1, gamma=0.0) as replay:
        replay.save(tmp_path / "replay")
    with pytest.raises(ConfigError, match=r"as --gamma is 0: it does not say where episodes terminated"):
        saved(tmp_path / "replay", Config(), tmp_path / "to")
    assert not (tmp_path / "to").exists()


def test_pieces_of_a_replay_are_what_was_filled_into_it(tmp_path: Path) -> None:
    episodes = corridor_episodes(20, limit=6)
    where = str(write_corridor(tmp_path / "d", episodes))
    fields = {"observation": Field((), "int64"), "action": Field((), "int64")}
    options = {"fields": fields, "kind": "transition", "n_step": 1, "gamma": 0.9}
    with filled_replay(where, Dataset(where).spec, "version", 0.0, **options) as replay:
        found = list(pieces(replay))
    assert sum(one.steps for one in found) == sum(one.steps for one in episodes)
    for what in ("action", "reward", "terminated"):
        np.testing.assert_array_equal(
            np.concatenate([getattr(one, what) for one in found]),
            np.concatenate([getattr(one, what) for one in episodes]),
        )


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_episodes_go_on_in_other_chunks(share: float) -> None:
    """Steps of several environments lie in a replay chunk by chunk, in turn. A ``share`` of the episodes is cut."""
    fields = {"observation": Field((), "int64"), "action": Field((), "int64")}
    rng, streams, ends = np.random.default_rng(1), np.arange(5), np.zeros(5, np.bool_)
    told: list[list[int]] = []  # what each whole episode saw
    open_: list[list[int]] = [[] for _ in streams]
    with Replay(5000, fields, kind="transition", n_step=1, gamma=0.9) as replay:
        writer, chunk = replay.writer(streams=5), replay.stats()["chunk"]
        assert chunk < 30, "an episode is longer"
        for step in range(700):
            seen = streams * 1000 + step
            for number, value in zip(streams.tolist(), seen.tolist(), strict=True):
                open_[number].append(value)
                if ends[number]:
                    told.append(open_[number])
                    open_[number] = []
            going = ~ends
            ends = going & (rng.random(5) < 1 / 40)
            cut = rng.random(5) < share
            steps = {"reward": np.ones(5, np.float32), "terminated": ends & ~cut, "truncated": ends & cut}
            writer.append({"observation": seen, "action": streams, **steps})
        assert replay.stats()["evicted"] == 0
        found = [one.observation["observation"].tolist() for one in pieces(replay)]
    whole = {tuple(one) for one in found}
    split = [one for one in told if tuple(one) not in whole]
    assert not split
    assert sum(len(one) - 1 for one in found) == sum(len(one) - 1 for one in (*told, *open_) if one)
    assert all((np.diff(one) == 1).all() for one in found)


@pytest.mark.parametrize("cut", [False, True])
def test_where_nothing_tells_observations_apart_episodes_end_where_they_did(cut: bool) -> None:
    """But for one that was cut where its chunk ended."""
    fields = {"observation": Field((), "int64"), "action": Field((), "int64")}
    with Replay(5000, fields, kind="transition", n_step=1, gamma=0.9) as replay:
        writer = replay.writer(streams=1)
        for step in range(1200):
            ends = np.array([step % 6 == 4])
            steps = {"reward": np.ones(1, np.float32), "terminated": ends & (not cut), "truncated": ends & cut}
            writer.append({"observation": np.zeros(1, np.int64), "action": np.zeros(1, np.int64), **steps})
        found = [one.steps for one in pieces(replay)]
    assert sum(found) == 1000
    assert found.count(5) == 200 if not cut else found.count(5) >= 180


def test_texts_and_actions_of_two_kinds_go_through_a_replay(tmp_path: Path) -> None:
    shown, asked = gym.spaces.Text(9), gym.spaces.Tuple([gym.spaces.Discrete(3), gym.spaces.Box(-1.0, 1.0, (1,))])
    seen = flatten_observation(observation_leaves(shown), ["go", "to the", "", "red door"])
    action = np.array([[2, 0.5], [0, -1.0], [1, 0.25]], np.float32)
    ends = np.array([False, False, True])
    episode = Episode(seen, action, np.ones(3, np.float32), ends, np.zeros(3, np.bool_))
    write(tmp_path / "d", "a/b-v0", [episode], shown, asked)
    spec = env_spec(shown, asked)
    fields = {**spec.observation, "action": Field((2,), "float32")}
    options = {"fields": fields, "kind": "transition", "n_step": 1, "gamma": 0.9}
    with filled_replay(str(tmp_path / "d"), spec, "version", 0.0, **options) as replay:
        (found,) = pieces(replay)
    for name, values in seen.items():
        np.testing.assert_array_equal(found.observation[name], values)
    np.testing.assert_array_equal(found.action, action)
    assert found.terminated.tolist() == ends.tolist()
