"""Games whose agents take turns: a row has the turns of one agent, and others play the rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Discrete

from apexrl.config import EnvConfig
from apexrl.envs import make_vector
from apexrl.envs.board_games import BoardGame, env
from apexrl.envs.players import Asked
from apexrl.envs.seat_rows import SeatRows
from apexrl.errors import EnvError

GAME = "apexrl.envs.board_games:env"


class First:
    """Puts a stone into the first free cell, and notes what it was asked."""

    def __init__(self) -> None:
        self.asked: list[list[Asked]] = []
        self.seen: list[Any] = []

    def draw(self, agents: Sequence[str]) -> dict[str, str]:
        return {agent: f"first-free-{agent}" for agent in agents}

    def act(self, asked: Sequence[Asked], spec: Any, observations: Any) -> Any:
        self.asked.append(list(asked))
        self.seen.append(observations)
        masks = observations.get("observation/action_mask")
        return np.zeros(len(asked), np.int64) if masks is None else np.argmax(masks, axis=1)


def games(count: int, **config: Any) -> tuple[Any, First]:
    player = First()
    return make_vector(EnvConfig(env=GAME, **config), count, 1, players=lambda seed: player), player


def test_a_row_has_the_turns_of_one_agent() -> None:
    rows, player = games(2)
    seen = rows.reset()
    assert rows.spec.observation["observation/observation"].shape == (18,)
    assert seen["observation/observation"].sum(axis=1).tolist() == [0, 1], "the second row's agent is second"
    assert [one.agent for one in player.asked[0]] == ["first"]
    # the learned one fills the last row of the board, the other the first
    steps = [rows.step(np.array(cells)) for cells in ([8, 8], [7, 7], [6, 3])]
    assert [step.reward.tolist() for step in steps] == [[0, 0], [0, -1], [1, 0]]
    assert [step.terminated.tolist() for step in steps] == [[False, False], [False, True], [True, False]]
    assert [step.starts.tolist() for step in steps] == [[False] * 2, [False] * 2, [False, True]]
    episodes = {episode.env: episode for step in steps for episode in step.episodes}
    assert episodes[0].metrics == {"return/first": 1.0, "won": 1.0}
    assert episodes[1].metrics == {"return/second": -1.0, "won": 0.0}
    assert (episodes[0].length, episodes[1].length) == (3, 2)


def test_players_are_asked_together_and_told_where_a_game_begins() -> None:
    rows, player = games(4)
    rows.reset()
    assert len(player.asked) == 1
    assert [(one.game, one.begins, one.player) for one in player.asked[0]] == [
        (1, True, "first-free-first"), (3, True, "first-free-first"),
    ]  # fmt: skip
    rows.step(np.array([8, 8, 8, 8]))
    assert [(one.game, one.begins) for one in player.asked[1]] == [(0, True), (1, False), (2, True), (3, False)]


def test_a_draw_and_an_illegal_move() -> None:
    rows, _ = games(1)
    rows.reset()
    step = rows.step(np.array([0]))
    assert not step.terminated[0]
    step = rows.step(np.array([0]))
    assert (step.reward[0], step.terminated[0]) == (-1.0, True)
    assert step.episodes[0].metrics["won"] == 0.0


def test_rewards_are_the_games_results() -> None:
    rows, rng = make_vector(EnvConfig(env=GAME), 8, 1), np.random.default_rng(1)
    mask = rows.reset()["observation/action_mask"]
    found = []
    for _ in range(100):
        step = rows.step(np.argmax(rng.random(mask.shape) * mask, axis=1))
        mask = step.observation["observation/action_mask"] | step.terminated[:, None]
        for episode in step.episodes:
            found.append(episode.metrics["won"])
            assert step.reward[episode.env] == {1.0: 1.0, 0.5: 0.0, 0.0: -1.0}[found[-1]]
    assert set(found) == {0.0, 0.5, 1.0}, "won, drawn and lost"


class Thirds:
    """Three agents have one turn each, and get 1, 0 and 0 for it, or as it is said."""

    possible_agents = ("a", "b", "c")

    def __init__(self, rewards: tuple[float, ...] = (1.0, 0.0, 0.0)) -> None:
        self._all = dict(zip(self.possible_agents, rewards, strict=True))

    def observation_space(self, agent: str) -> Any:
        return Discrete(2)

    def action_space(self, agent: str) -> Any:
        return Discrete(2)

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        self.agents, self._turn = list(self.possible_agents), 0
        self.rewards = dict.fromkeys(self.agents, 0.0)

    @property
    def agent_selection(self) -> str:
        return self.agents[0]

    def last(self) -> tuple[Any, ...]:
        ended = self._turn >= 3
        return 0, self.rewards[self.agents[0]], ended, False, {}

    def step(self, action: Any) -> None:
        if action is None:
            self.agents.pop(0)
            return
        self._turn += 1
        self.agents.append(self.agents.pop(0))
        self.rewards = self._all if self._turn == 3 else dict.fromkeys(self.agents, 0.0)

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("rewards", "won"), [((1, 0, 0), 1.0), ((0, 1, 0), 0.25), ((0, 1, -1), 0.5), ((0, 0, 0), 0.5), ((0, 1, 1), 0.0)]
)
def test_of_several_others_each_one_that_is_beaten_counts(rewards: tuple[float, ...], won: float) -> None:
    """So equals win half, as Elo has it."""
    rows = SeatRows([Thirds(rewards)], "thirds", ["a"], First())
    rows.reset([1])
    rows.send(np.array([0]), np.zeros(1, np.bool_))
    received = rows.receive()
    assert received is not None
    assert received.metrics == {0: {"return/a": float(rewards[0]), "won": won}}


def test_agents_that_are_not_learned_never_have_a_row() -> None:
    rows, player = games(3, learned_agents=("second",))
    rows.reset()
    for _ in range(12):
        rows.step(np.array([8, 7, 6]))
    assert {one.agent for asked in player.asked for one in asked} == {"first"}
    with pytest.raises(EnvError, match=r"--learned-agents 'third'.*first, second"):
        games(1, learned_agents=("third",))


def test_parallel_agents_that_are_not_learned_are_played() -> None:
    asked: list[str] = []

    class Stands(First):
        def act(self, who: Sequence[Asked], spec: Any, observations: Any) -> Any:
            asked.extend(one.agent for one in who)
            return np.zeros(len(who), np.int64)

    config = EnvConfig(env="agent_toys:parallel_env", learned_agents=("sh*",))
    rows = make_vector(config, 2, 1, players=lambda seed: Stands())
    assert rows.spec.agents == ("short",)
    rows.reset()
    steps = [rows.step(np.array([1, 1])) for _ in range(3)]
    assert steps[1].terminated.all()
    assert steps[2].starts.all(), "when all learned agents have ended, what remains is not played"
    assert asked == ["long"] * 4


@pytest.mark.parametrize("maker", ["parallel_env", "env"])
def test_whoever_acts_gives_actions_in_the_form_of_their_space(maker: str) -> None:
    rows = make_vector(EnvConfig(env=f"offer_toys:{maker}", learned_agents=("seller",)), 2, 1)
    rows.reset()
    steps = [rows.step(np.array([[0.0, 0.5, -0.5], [2.0, 1.0, 0.0]], np.float32)) for _ in range(3)]
    assert [step.terminated.all() for step in steps] == [False, True, False], "of four offers two are the seller's"


@pytest.mark.parametrize("maker", ["parallel_env", "env"])
def test_the_own_pool_plays_nobody_who_sees_something_else(maker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("offer_toys.Offers.observation_space", lambda self, agent: Discrete(5 + (agent == "buyer")))
    config = EnvConfig(env=f"offer_toys:{maker}", learned_agents=("seller",))
    for own in ((), ("b*=self",), ("*=runs/buyers", "buyer=self")):
        with pytest.raises(EnvError, match=r"buyer of offer_toys.* other observations .* --played-by 'buyer=RUN'"):
            make_vector(replace(config, played_by=own), 2, 1)
    make_vector(replace(config, played_by=("b*=runs/buyers",)), 2, 1).close()
    with pytest.raises(EnvError, match=r"--played-by 'byer=…': .* has .*buyer.*, and no such agent"):
        make_vector(replace(config, played_by=("b*=runs/buyers", "byer=self")), 2, 1)


def test_every_game_is_closed_when_closing_one_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = []

    def close(game: Any) -> None:
        closed.append(game)
        if len(closed) == 1:
            raise RuntimeError("no display")

    monkeypatch.setattr(BoardGame, "close", close)
    rows, _ = games(3)
    with pytest.warns(RuntimeWarning, match=r"close\(\) of environment 0 raised RuntimeError: no display"):
        rows.close()
    assert len(set(map(id, closed))) == 3


def test_connect_four_knows_its_lines() -> None:
    game = env("connect_four")
    game.reset()
    for column in (0, 1, 0, 1, 0, 1):
        game.step(column)
    assert not any(game.terminations.values())
    game.step(0)
    assert game.rewards == {"first": 1.0, "second": -1.0}
    diagonal = BoardGame(6, 7, 4, falls=True)
    diagonal.reset()
    for column in (0, 1, 1, 2, 2, 3, 2, 3, 3, 6, 3):
        assert not any(diagonal.terminations.values())
        diagonal.step(column)
    assert diagonal.rewards["first"] == 1.0
    with pytest.raises(EnvError, match="no line of 4"):
        BoardGame(3, 3, 4)
