"""Environments of several agents: each agent is a row, and one that takes no part is idle."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import agent_toys
from apexrl.config import EnvConfig
from apexrl.envs import env_spec_and_limit, make_vector
from apexrl.envs.agent_rows import told_names
from apexrl.errors import EnvError

GAME = "agent_toys:parallel_env"


def played(config: EnvConfig, actions: list[list[int]], rows: int = 1) -> tuple[Any, list[Any]]:
    env = make_vector(config, rows, 1)
    first = env.reset()
    return first, [env.step(np.array(action, np.int64)) for action in actions]


def test_rows_are_agents_of_whole_environments() -> None:
    env = make_vector(EnvConfig(env=GAME), 3, 1)
    assert env.num_envs == 4, "two environments of two agents"
    assert env.spec.agents == ("short", "long")
    assert env.reset()["observation"][:, 2].tolist() == [0, 1, 0, 1]


def test_an_agent_that_ended_is_idle_until_its_environment_begins_anew() -> None:
    _, steps = played(EnvConfig(env=GAME), [[1, 1]] * 7)
    assert [step.reward.tolist() for step in steps] == [[1, 1], [1, 1], [0, 1], [0, 1], [0, 1], [0, 0], [1, 1]]
    assert [step.terminated.tolist() for step in steps[:6]] == [
        *([False, False], [True, False], [False, False], [False, False], [False, True], [False, False])
    ]
    assert [step.idle.tolist() for step in steps] == [
        [False] * 2,
        [False] * 2,
        *[[True, False]] * 3,
        *[[False] * 2] * 2,
    ]
    assert [step.starts.tolist() for step in steps] == [[False] * 2] * 5 + [[True] * 2, [False] * 2]
    assert [step.steps for step in steps] == [2, 2, 1, 1, 1, 0, 2]
    assert steps[4].observation["observation"][0].tolist() == [2, 2, 0, 2], "it is shown its final observation"
    episodes = [(episode.env, episode.episode_return, episode.length) for step in steps for episode in step.episodes]
    assert episodes == [(0, 2.0, 2), (1, 5.0, 5)]
    assert steps[4].episodes[0].metrics == {"return/long": 5.0}


def test_an_agent_that_appears_later_has_no_final_observation_behind_it() -> None:
    game = EnvConfig(env=GAME, env_kwargs={"late": {"long": 1}, "limit": 3})
    first, steps = played(game, [[0, 1]] * 5)
    assert not first["observation"][1].any(), "it is not there"
    assert [step.idle.tolist() for step in steps] == [
        [False, True],
        [False] * 2,
        [False] * 2,
        [False, True],
        [False] * 2,
    ]
    assert [step.starts.tolist() for step in steps] == [[False, True], *[[False] * 2] * 2, [True, False], [False, True]]
    assert [step.reward[1] for step in steps] == [0, 1, 1, 0, 0]
    assert steps[2].truncated.all()


def test_a_reset_in_mid_episode_begins_the_part_of_everybody() -> None:
    env = make_vector(EnvConfig(env=GAME, env_kwargs={"late": {"short": 1}}), 2, 1)
    first = {name: array.copy() for name, array in env.reset().items()}
    for _ in range(2):
        env.step(np.array([1, 1]))
    again = env.reset()
    assert {name: array.tolist() for name, array in again.items()} == {
        name: array.tolist() for name, array in first.items()
    }
    steps = [env.step(np.array([1, 1])) for _ in range(6)]
    told = {episode.env: episode.metrics for step in steps for episode in step.episodes}
    assert told == {0: {"return/short": 2.0}, 1: {"return/long": 5.0}}
    assert [step.idle.tolist() for step in steps[:2]] == [[True, False], [False, False]]


def test_others_play_until_a_learned_agent_appears() -> None:
    late = EnvConfig(
        env=GAME, env_kwargs={"lengths": {"short": 9, "long": 2}, "late": {"long": 3}}, learned_agents=("long",)
    )
    first, steps = played(late, [[1]] * 6)
    assert not first["observation"].any()
    assert [step.idle.tolist() for step in steps[:5]] == [[True]] * 3 + [[False]] * 2
    assert [step.starts.tolist() for step in steps[:5]] == [[False], [False], [True], [False], [False]]
    assert [step.reward[0] for step in steps[3:5]] == [1.0, 1.0]
    assert steps[4].terminated[0]
    assert steps[2].observation["observation"][0].tolist() == [0, 2, 1, 3], "three steps of the other one"


@pytest.mark.parametrize("limit", [9, 2])
def test_an_episode_goes_on_while_a_learned_agent_is_to_appear(limit: int) -> None:
    kwargs = {"lengths": {"short": 2, "other": 50, "long": 2}, "late": {"long": 4}, "limit": 7}
    config = EnvConfig(
        env=GAME, env_kwargs=kwargs, learned_agents=("short", "long"), max_episode_steps=0 if limit == 9 else limit
    )
    _, steps = played(config, [[1, 1]] * 14)
    told = [(at, episode.env, episode.episode_return) for at, step in enumerate(steps) for episode in step.episodes]
    if limit == 9:
        assert told == [(1, 0, 2.0), (5, 1, 2.0), (8, 0, 2.0), (12, 1, 2.0)], (
            "what remains, when both have ended, is not played"
        )
        assert steps[6].starts.tolist() == [True, False]
    else:
        assert told == [(at, 0, 2.0) for at in (1, 4, 7, 10, 13)], "two steps, and one in which the next one begins"


@pytest.mark.parametrize(
    ("limit", "most", "text"),
    [
        (2, 0, "100 episodes in a row of environment 0: learn"),
        (10**9, 0, "200 steps of environment 0: learn"),
        (10**9, 3, "100 episodes in a row of environment 0 of at most 3 steps .--max-episode-steps.: learn"),
    ],
)
def test_a_learned_agent_that_never_appears_is_named(
    limit: int, most: int, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("apexrl.envs.agent_rows.MOST_TURNS", 200)
    kwargs = {"lengths": {"short": 10**9, "long": 2}, "late": {"long": 10**9}, "limit": limit}
    config = EnvConfig(env=GAME, env_kwargs=kwargs, learned_agents=("long",), max_episode_steps=most)
    env = make_vector(config, 1, 1)
    for _ in range(150):  # a reset is no episode without it
        env.reset()
        env.step(np.array([1]))
    with pytest.raises(EnvError, match=f"of --learned-agents long none appeared in {text} an agent that does"):
        for _ in range(500):
            env.step(np.array([1]))


def test_where_one_of_the_learned_agents_came_the_others_do_not_play_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("apexrl.envs.agent_rows.MOST_TURNS", 20)
    kwargs = {"lengths": {"short": 2, "other": 10**9, "long": 2}, "late": {"long": 10**9}, "limit": 10**9}
    _, steps = played(EnvConfig(env=GAME, env_kwargs=kwargs, learned_agents=("short", "long")), [[1, 1]] * 50)
    assert [at for at, step in enumerate(steps) if step.starts[0]] == [20, 41]


class Lingers:
    """Of two agents that stay listed until both have ended."""

    def __init__(self, blind: bool = False) -> None:
        self._inner, self._blind = agent_toys.Corridors({"a": 1, "b": 3}), blind
        self._ended: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    @property
    def agents(self) -> list[str]:
        return ["a", "b"] if self._inner.agents else []

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        return self._inner.reset(seed)

    def step(self, actions: Any) -> Any:
        seen, *rest = self._inner.step(actions)
        return {agent: one for agent, one in seen.items() if not self._blind or agent != "a"}, *rest


@pytest.mark.parametrize("blind", [False, True])
def test_an_agent_that_others_play_may_stay_listed_after_its_end(blind: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_toys, "parallel_env", lambda: Lingers(blind))
    env = make_vector(EnvConfig(env=GAME, learned_agents=("b",)), 1, 1, players=lambda seed: Onward())
    env.reset()
    steps = [env.step(np.array([1])) for _ in range(5)]
    assert [step.reward[0] for step in steps] == [1.0, 1.0, 1.0, 0.0, 1.0]
    assert [step.terminated[0] for step in steps] == [False, False, True, False, False]


class Returns:
    """Of ``b``, and of ``a``, which ends at the first step, is listed for one more, and comes back behind the third."""

    possible_agents = ("a", "b")

    def __init__(self) -> None:
        self.acted: list[str] = []

    def observation_space(self, agent: str) -> Any:
        return Box(0, 9, (1,), np.float32)

    def action_space(self, agent: str) -> Any:
        return Discrete(2)

    @property
    def agents(self) -> list[str]:
        return ["b"] if self._time == 2 else ["a", "b"]

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self._time = 0
        return {agent: np.zeros(1, np.float32) for agent in self.agents}, {}

    def step(self, actions: Any) -> Any:
        self.acted.append("".join(sorted(actions)))
        self._time += 1
        seen = {agent: np.full(1, self._time, np.float32) for agent in "ab"}
        ends = {"a": self._time == 1, "b": False}
        return seen, dict.fromkeys("ab", 0.0), ends, dict.fromkeys("ab", False), {}

    def close(self) -> None:
        pass


def test_an_agent_that_others_play_may_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    game = Returns()
    monkeypatch.setattr(agent_toys, "parallel_env", lambda: game)
    env = make_vector(EnvConfig(env=GAME, learned_agents=("b",)), 1, 1, players=lambda seed: Onward())
    env.reset()
    for _ in range(4):
        env.step(np.array([1]))
    env.reset()
    env.step(np.array([1]))
    env.reset()  # while one that ended is listed
    env.step(np.array([1]))
    assert game.acted == ["ab", "b", "b", "ab", "ab", "ab"]


class Onward:
    """Plays action 1 for everybody."""

    def draw(self, agents: Any) -> dict[str, str]:
        return dict.fromkeys(agents, "onward")

    def act(self, asked: Any, spec: Any, observations: Any) -> Any:
        return np.ones(len(asked), np.int64)


@pytest.mark.parametrize("team", [False, True])
def test_an_environment_may_say_after_how_many_steps_it_is_cut(team: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """PettingZoo's families have ``max_cycles``."""
    made: list[Any] = []
    begin = agent_toys.Corridors.__init__

    def noted(game: Any, *args: Any, **kwargs: Any) -> None:
        made.append(game)
        begin(game, *args, **kwargs)

    monkeypatch.setattr(agent_toys.Corridors, "__init__", noted)
    config = EnvConfig(env=GAME, team=team)
    assert env_spec_and_limit(config)[1] is None
    assert len(made) == 1, "it is made once"
    monkeypatch.setattr(agent_toys.Corridors, "max_cycles", 25, raising=False)
    assert env_spec_and_limit(config)[1] == 25
    assert env_spec_and_limit(replace(config, max_episode_steps=7))[1] == 7


def test_a_time_limit_truncates_all() -> None:
    _, steps = played(EnvConfig(env=GAME, max_episode_steps=2), [[0, 1], [0, 1], [0, 0]])
    assert not steps[0].truncated.any()
    assert steps[1].truncated.all()
    assert not steps[1].terminated.any()
    assert steps[2].starts.all()


def test_what_is_shown_besides() -> None:
    env = make_vector(EnvConfig(env=GAME, show_agent=True, show_state=True), 2, 1)
    seen = env.reset()
    assert set(seen) == {"observation/obs", "observation/agent", "observation/state"}
    assert env.spec.categories == {"observation/agent": 2}
    assert seen["observation/agent"].tolist() == [0, 1]
    assert env.step(np.array([1, 0])).observation["observation/state"].tolist() == [[1, 0], [1, 0]]


def test_returns_of_many_agents_are_told_by_their_kind() -> None:
    assert told_names(["a_0", "a_1"]) == {"a_0": "return/a_0", "a_1": "return/a_1"}
    assert set(told_names([f"piston_{n}" for n in range(20)]).values()) == {"return/piston"}


class Odd:
    def __init__(self, fault: str) -> None:
        from agent_toys import Corridors

        self._fault, self._inner = fault, Corridors({"a": 3, "b": 3})

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def step(self, actions: Any) -> Any:
        seen, *rest = self._inner.step(actions)
        if self._fault == "shows nothing":
            seen.pop("b")
        elif self._fault == "says nothing":
            rest[1].pop("b")
        elif self._fault == "pays nothing":
            rest[0].pop("b")
        elif self._fault == "shape":
            seen["b"] = seen["b"][:2]
        elif self._fault == "pays None":
            rest[0]["b"] = None
        elif self._fault == "pays two":
            rest[0]["b"] = np.zeros(2)
        elif self._fault == "nobody":
            self._inner.agents = []
        return seen, *rest


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ("shows nothing", "shows nothing to agent 'b'"),
        ("says nothing", "says nothing"),
        ("pays nothing", "says nothing"),
        ("shape", "of shape [2]"),
        ("pays None", "agent 'b', returned the reward None; it must be a number"),
        ("pays two", "agent 'b', returned a reward of shape (2,)"),
        ("nobody", "has no agent left, and 'a' has neither terminated nor been truncated"),
    ],
)
def test_a_faulty_environment_is_told(fault: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import agent_toys

    monkeypatch.setattr(agent_toys, "parallel_env", lambda: Odd(fault))
    env = make_vector(EnvConfig(env=GAME), 2, 1)
    env.reset()
    with pytest.raises(EnvError, match=re.escape(text)):
        env.step(np.array([0, 0]))


def test_an_agent_that_others_play_must_be_shown_something(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_toys, "parallel_env", lambda: Odd("shows nothing"))
    env = make_vector(EnvConfig(env=GAME, learned_agents=("a",)), 1, 1)
    env.reset()
    with pytest.raises(EnvError, match="shows nothing to agent 'b', which is to act"):
        env.step(np.array([0]))


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (EnvConfig(env="agent_toys:env"), "no function 'env'"),
        (EnvConfig(env="no_such_module:parallel_env"), "no module 'no_such_module'"),
        (EnvConfig(env=GAME, last_action_reward=True), "leave out --last-action-reward"),
        (EnvConfig(env=GAME, env_kwargs={"lengths": {}}), "possible_agents"),
    ],
)
def test_what_cannot_be_made_is_refused(config: EnvConfig, text: str) -> None:
    with pytest.raises(EnvError, match=text):
        make_vector(config, 2, 1)
