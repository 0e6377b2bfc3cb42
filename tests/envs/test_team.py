"""Agents that act at the same time, as one environment of a team."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from test_action_masks import Fallers

import agent_toys
from apexrl.config import EnvConfig
from apexrl.envs import make_env, make_vector
from apexrl.envs.team import TeamEnv
from apexrl.errors import EnvError
from apexrl.spec import ACTION_MASK, PRESENT, TEAM


def corridors(**more: Any) -> TeamEnv:
    return TeamEnv(agent_toys.Corridors({"a": 1, "b": 3}, **more), "corridors", show_agent=True, show_state=True)


def test_a_step_has_what_all_see_do_and_get() -> None:
    env = corridors()
    assert isinstance(env.action_space, gym.spaces.MultiDiscrete)
    seen, _ = env.reset(seed=1)
    assert seen["agents"]["obs"].tolist() == [[0, 1, 0, 0], [0, 3, 1, 0]]
    assert seen["agents"]["agent"].tolist() == [0, 1]
    assert seen["present"].tolist() == [1, 1]
    assert env.observation_space.contains(seen)
    seen, reward, ended, cut, _ = env.step(np.array([1, 0]))
    assert (reward, ended, cut) == (0.5, False, False), "the mean of 1 and 0"
    # a has ended: it sees nothing, has one action, and the environment is told of b alone
    assert seen["present"].tolist() == [0, 1]
    assert seen["agents"]["obs"][0].tolist() == [0, 0, 0, 0]
    assert seen["action_mask"].tolist() == [1, 0, 1, 1]
    for _ in range(3):
        seen, reward, ended, cut, _ = env.step(np.array([0, 1]))
    assert (reward, ended, cut) == (0.5, True, False)
    assert seen["state"].tolist() == [1, 3]


def test_agents_that_see_tuples_and_several_categories(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has ended sees the first value of each category."""
    cards = gym.spaces.MultiDiscrete([5, 10], start=[1, 0])
    space = gym.spaces.Tuple([gym.spaces.Discrete(9, start=-1), gym.spaces.Dict(cards=cards)])
    monkeypatch.setattr(agent_toys.Corridors, "observation_space", lambda *_: space)
    plain = agent_toys.Corridors._seen
    monkeypatch.setattr(
        agent_toys.Corridors, "_seen", lambda *of: (int(plain(*of)[0]), {"cards": plain(*of)[1:3].astype(np.int64)})
    )
    env = TeamEnv(agent_toys.Corridors({"a": 1, "b": 3}), "corridors", show_last_action=True)
    env.reset()
    seen, *_ = env.step(np.array([1, 1]))
    assert env.observation_space.contains(seen)
    places, held = seen["agents"]["obs"]
    assert places.tolist() == [-1, 1]
    assert held["cards"].tolist() == [[1, 0], [3, 1]]
    vector = make_vector(EnvConfig(env="agent_toys:parallel_env", team=True), 2, 0)
    assert vector.spec.categories == {f"{TEAM}/0": 9, f"{TEAM}/1/cards": 10}
    vector.close()
    monkeypatch.setattr(agent_toys.Corridors, "observation_space", lambda *_: gym.spaces.Text(3))
    with pytest.raises(EnvError, match=r"a team's agents see no text, sequence or graph, and these see Text"):
        TeamEnv(agent_toys.Corridors({"a": 1}), "corridors")


def test_each_agent_sees_what_it_did_last() -> None:
    env = TeamEnv(agent_toys.Corridors({"a": 1, "b": 3}), "corridors", show_last_action=True)
    seen, _ = env.reset()
    assert seen["agents"]["last_action"].tolist() == [[0, 0], [0, 0]]
    assert env.observation_space.contains(seen)
    seen, *_ = env.step(np.array([0, 1]))
    assert seen["agents"]["last_action"].tolist() == [[1, 0], [0, 1]]
    assert seen["agents"]["obs"][:, 0].tolist() == [0, 1]
    seen, *_ = env.step(np.array([1, 0]))
    assert seen["agents"]["last_action"].tolist() == [[0, 0], [1, 0]], "a has ended"
    assert not env.reset()[0]["agents"]["last_action"].any()


def test_masks_are_no_part_of_what_an_agent_is_shown_with_its_last_action(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_toys, "parallel_env", Fallers)
    env = make_vector(EnvConfig(env="agent_toys:parallel_env", team=True, show_last_action=True), 2, 0)
    assert {name for name in env.spec.observation if name.startswith(TEAM)} == {
        f"{TEAM}/observation",
        f"{TEAM}/last_action",
    }
    actions = env.reset()[ACTION_MASK].reshape(2, 3, 3).argmax(axis=2)
    seen = env.step(actions).observation
    np.testing.assert_array_equal(seen[f"{TEAM}/last_action"].argmax(axis=2), actions)
    env.close()


def test_it_is_truncated_where_the_last_agent_is() -> None:
    env = corridors(limit=2)
    env.reset()
    env.step(np.array([1, 0]))
    seen, *_, ended, cut, _ = env.step(np.array([0, 0]))
    assert (ended, cut) == (False, True)
    # a has terminated; b was cut short, and what it would do next is worth something
    assert seen["present"].tolist() == [0, 1]
    assert seen["agents"]["obs"][1].any()
    assert seen["action_mask"].tolist() == [1, 0, 1, 1]


def test_agents_that_stay_listed_end_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    env = corridors()
    env.reset()
    step = env._env.step

    def listed(actions: Any) -> Any:
        answer = step(actions)
        env._env.agents = env._env.agents or list(env.agents)
        return answer

    monkeypatch.setattr(env._env, "step", listed)
    for number in range(3):
        *_, ended, cut, _ = env.step(np.array([int(number == 0), 1]))
        assert ended == (number == 2)
    assert (ended, cut) == (True, False)


def test_a_game_without_agents_has_ended_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    env = corridors()
    env.reset()
    plain = agent_toys.Corridors.step

    def emptied(game: Any, actions: Any) -> Any:
        answer = plain(game, actions)
        game.agents = []
        return answer

    monkeypatch.setattr(agent_toys.Corridors, "step", emptied)
    with pytest.raises(EnvError, match="has no agent left, and 'b' has neither terminated nor been truncated"):
        env.step(np.array([1, 0]))  # where a ends


def test_rows_are_teams_with_the_masks_of_their_agents(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_toys, "parallel_env", Fallers)
    config = EnvConfig(env="agent_toys:parallel_env", team=True)
    for vector in ("sync", "threads"):
        env = make_vector(config, 2, 0, vector)
        assert env.spec.observation[f"{TEAM}/observation"].shape == (3, 1)
        assert env.spec.observation[PRESENT].shape == (3,)
        seen, lengths = env.reset(), []
        for _ in range(12):
            stepped = env.step(seen[ACTION_MASK].reshape(2, 3, 3).argmax(axis=2))
            seen = stepped.observation
            lengths += [episode.length for episode in stepped.episodes]
        assert lengths == [3] * 6
        env.close()


def test_a_time_limit_ends_its_episodes() -> None:
    env = make_vector(EnvConfig(env="agent_toys:parallel_env", team=True, max_episode_steps=2), 1, 0)
    env.reset()
    for last in (False, True):
        stepped = env.step(np.zeros((1, len(env.spec.action.nvec)), np.int64))
        assert stepped.truncated[0] == last
    env.close()


def test_what_makes_no_team_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EnvError, match="take turns"):
        make_env(EnvConfig(env="apexrl.envs.board_games:env", team=True))
    monkeypatch.setattr(agent_toys.Corridors, "action_space", lambda *_: gym.spaces.Box(-1, 1, (1,)))
    with pytest.raises(EnvError, match="actions of a team's agents are Discrete"):
        corridors()
