"""Self-play against a pool of earlier policies: in every topology, and over kills of everything."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import apexrl
from apexrl.agents import with_agent
from apexrl.agents.dqn import DQN
from apexrl.agents.transition_batch import Transitions
from apexrl.config import Config
from apexrl.config.convert import override
from apexrl.envs import make_vector
from apexrl.errors import ConfigError
from apexrl.launch import launch
from apexrl.links.local.role_context import InlineContext, InlineRun, WorkerIdentity
from apexrl.roles.pool_players import PoolPlayers, opponents
from apexrl.run import checkpoint
from apexrl.run.metrics import read_rows
from apexrl.run.observers import IdleObserver
from apexrl.run.opponent_pool import Member, OpponentPool, Ratings
from apexrl.run.status import Level
from apexrl.topologies.placements import check
from apexrl.topologies.validation import validate

GAME = "apexrl.envs.board_games:env"
VALUES: dict[str, Any] = {"epsilon": 0.3, "updates_per_step": 0.1}
RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "apex": ("dueling_dqn", VALUES),
    "gorila": ("dqn", VALUES),
    "impala": ("ppo", {}),
    "a3c": ("a2c", {}),
    "ga3c": ("a2c", {}),
    "seed": ("impala", {}),
    "sample_factory": ("appo", {}),
}


def self_play(topology: str, out: Path, **changes: Any) -> Config:
    agent, own = RUNS[topology]
    return override(
        with_agent(Config(topology=topology), agent),
        {
            "env": GAME, "serial": True, "out": str(out), "name": "run", "env_steps": 600, "hidden": (16,),
            "unroll_length": 8, "batch_size": 8, "min_size": 64, "actors": 1, "envs_per_actor": 8,
            "eval_episodes": 4, "eval_period_seconds": 1e6, "capacity": 1_000, "pool_period_steps": 150,
            "pool_size": 3, "match_games": 8, "match_period_seconds": 0.01, **own, **changes,
        },
    )  # fmt: skip


@pytest.mark.parametrize(
    "topology",
    [name if name in ("seed", "sample_factory") else pytest.param(name, marks=pytest.mark.long) for name in RUNS],
)
def test_a_run_plays_its_earlier_policies_and_rates_them(
    topology: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: set[str] = set()
    draw = PoolPlayers.draw

    def noted(self: PoolPlayers, agents: Any) -> dict[str, str]:
        found = draw(self, agents)
        drawn.update(found.values())
        return found

    monkeypatch.setattr(PoolPlayers, "draw", noted)
    monkeypatch.setattr("apexrl.roles.pool_players._LOOK_SECONDS", 0.0)
    launch(self_play(topology, tmp_path))
    ratings = OpponentPool(tmp_path / "run").ratings()
    assert ratings is not None
    assert len(ratings.members) == 3
    assert ratings.members[0].elo == 0.0, "the first is the measure"
    assert ratings.members[-1].env_steps >= 450
    assert ratings.matches >= 3
    assert {"random", "self:newest", f"self:{ratings.members[0].name}"} <= drawn
    rows = read_rows(tmp_path / "run" / "metrics.jsonl")
    assert rows[-1]["custom/pool_elo"] == pytest.approx(ratings.elo)
    assert {"episode/won_mean", "episode/return/first_mean", "episode/return/second_mean"} <= set().union(*rows)


def test_a_full_disk_costs_no_pool_and_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = iter(range(3))
    write = checkpoint.save_weights

    def on_a_small_disk(*given: Any) -> None:
        if next(full, None) is not None:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(*given)

    monkeypatch.setattr(checkpoint, "save_weights", on_a_small_disk)
    monkeypatch.setattr("apexrl.roles.checkpointing._PAUSES", (1e-3, 1e-3))
    launch(self_play("impala", tmp_path))
    ratings = OpponentPool(tmp_path / "run").ratings()
    assert ratings is not None
    assert len(ratings.members) == 3
    assert ratings.matches
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["dropped"]["checkpoint_writes"] == 3


def test_what_is_learned_from_is_what_the_own_move_led_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The result of a game comes to the last move of whoever is learned, whoever made the last move of all."""
    batches: list[Transitions] = []
    gradients = DQN.gradients

    def noted(self: DQN, batch: Transitions) -> Any:
        batches.append(batch)
        return gradients(self, batch)

    monkeypatch.setattr(DQN, "gradients", noted)
    launch(self_play("apex", tmp_path, n_step=1, gamma=0.9, batch_size=64))
    ends = {1.0: 0, -1.0: 0, 0.0: 0}
    for batch in batches:
        seen = batch.observation["observation/observation"].reshape(-1, 2, 9).numpy()
        later = batch.next_observation["observation/observation"].reshape(-1, 2, 9).numpy()
        rows = np.arange(len(seen))
        actions, reward, ended = batch.action.numpy(), batch.reward.numpy(), batch.discount.numpy() == 0.0
        assert np.array_equal(batch.observation["observation/action_mask"].numpy(), seen.sum(1) == 0)
        assert np.array_equal(
            batch.next_observation["observation/action_mask"].numpy()[~ended], later[~ended].sum(1) == 0
        )
        own = seen[:, 0].copy()
        own[rows, actions] += 1
        assert own.max() == 1, "no move to where a stone is"
        assert np.array_equal(later[:, 0], own)
        assert np.array_equal((later[:, 1] - seen[:, 1]).sum(1)[~ended], np.ones(np.count_nonzero(~ended))), "a reply"
        won, lost = (_lines(stones) for stones in (later[:, 0], later[:, 1]))
        assert np.array_equal(reward, won.astype(np.float32) - lost)
        assert np.array_equal(ended, won | lost | (later.sum((1, 2)) == 9))
        for result in reward[ended].tolist():
            ends[result] += 1
    assert min(ends.values()) > 10, "won, lost and drawn"


def _lines(stones: NDArray[np.float32]) -> NDArray[np.bool_]:
    """[N, 9]; whether three lie in a line, [N]."""
    board = stones.reshape(-1, 3, 3)
    diagonals = np.stack([np.trace(side, axis1=1, axis2=2) for side in (board, board[:, :, ::-1])], axis=1)
    lines: NDArray[np.bool_] = (np.concatenate([board.sum(1), board.sum(2), diagonals], axis=1) == 3).any(1)
    return lines


def test_a_run_plays_another_runs_policies_which_may_be_of_another_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few: dict[str, Any] = {"env_steps": 160, "eval_episodes": 1}
    launch(self_play("impala", tmp_path, **few, learned_agents=("second",), name="second"))
    played: set[str] = set()
    act = PoolPlayers.act

    def noted(self: PoolPlayers, asked: Any, spec: Any, observations: Any) -> Any:
        played.update(f"{one.agent} {one.player}" for one in asked)
        return act(self, asked, spec, observations)

    monkeypatch.setattr(PoolPlayers, "act", noted)
    other = tmp_path / "second"
    changes = {"learned_agents": ("first",), "played_by": (f"second={other}",), "match_period_seconds": 1e6}
    launch(self_play("apex", tmp_path, **few, **changes, name="first"))
    drawn = {name for name in played if f"{other}:" in name}
    assert f"second {other}:newest" in drawn
    assert played - drawn <= {"second random"}, "evaluations have random opponents"


def test_a_run_that_nobody_can_play_is_told_of_once(tmp_path: Path) -> None:
    told: list[dict[str, Any]] = []
    mistyped, empty = tmp_path / "mistyped", tmp_path / "empty"
    empty.mkdir()
    (empty / "config.toml").touch()
    config = self_play("impala", tmp_path, played_by=(f"first={mistyped}", f"second={empty}"))
    players = PoolPlayers(config, tmp_path / "run", 0, tell=lambda **values: told.append(values))
    assert players.draw(["first", "second"]) == {"first": "random", "second": "random"}
    assert [one["text"] for one in told] == [
        f"--played-by: {mistyped} is no run folder yet; until it has a pool, agents that it plays act at random",
        f"--played-by: {empty} has no pool yet; until it has one, agents that it plays act at random",
    ]
    assert len({one["once"] for one in told}) == 2


def test_a_run_is_named_by_its_whole_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be resumed from another working folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    config = self_play("impala", tmp_path, played_by=("a=runs/other", "b=~/other", "*=self"))
    assert config.env.played_by == (f"a={tmp_path}/runs/other", f"b={tmp_path}/home/other", "*=self")


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: os.truncate(path, 500)], ids=["lost", "cut off"])
def test_a_policy_that_cannot_be_read_plays_no_more(damage: Callable[[Path], object], tmp_path: Path) -> None:
    config = self_play("impala", tmp_path, newest_share=0.0, env_steps=400, pool_size=10)
    launch(config)
    folder = tmp_path / "run"
    pool = OpponentPool(folder)
    before = pool.ratings()
    assert before is not None
    damaged = before.members[-1].name
    damage(pool.file(damaged))
    told: list[dict[str, Any]] = []
    players = PoolPlayers(config, folder, 0, tell=lambda **values: told.append(values))
    with closing(make_vector(config.env, 1, 0)) as env:
        spec = env.spec
    assert not players.can_play(f"self:{damaged}", spec)
    assert players.can_play(f"self:{before.members[0].name}", spec)
    assert len(told) == 1
    assert f"{damaged}.safetensors" in told[0]["text"]
    drawn = {players.draw(["first"])["first"] for _ in range(200)}
    assert drawn == {f"self:{member.name}" for member in before.members[:-1]}
    warnings: list[str] = []
    launch(override(config, {"env_steps": 800}), [Warned(warnings)], resume=folder)
    after = pool.ratings()
    assert after is not None
    assert len(after.members) > len(before.members)
    assert next(one for one in after.members if one.name == damaged) == before.members[-1], "it was rated"
    assert any(f"{damaged}.safetensors" in text for text in warnings)


class Warned(IdleObserver):
    """Keeps warnings."""

    def __init__(self, texts: list[str]) -> None:
        self._texts = texts

    def message(self, text: str, level: Level = "info") -> None:
        if level == "warning":
            self._texts.append(text)


def test_the_roles_clock_decides_when_a_pool_is_looked_at(tmp_path: Path) -> None:
    """Serial runs count steps on it, so that they can be repeated."""
    run = InlineRun(lambda name, kind, values: None, steps_per_second=100.0)
    context = InlineContext(run, WorkerIdentity("actor-0", "actor", 0, 0, 1, tmp_path))
    players = opponents(context, self_play("impala", tmp_path, newest_share=0.0))
    assert players is not None
    asked = players(0)
    assert asked.draw(["second"]) == {"second": "random"}
    OpponentPool(tmp_path).put_ratings(Ratings(members=[Member("policy-000000150", 150, 1, 0.0)]))
    run.totals["env_steps"] = 99
    assert asked.draw(["second"]) == {"second": "random"}
    run.totals["env_steps"] = 100
    assert asked.draw(["second"]) == {"second": "self:policy-000000150"}


_RUN = """
import sys
from pathlib import Path
sys.path[:0] = [{tests!r}, {here!r}]
from test_self_play import self_play
from apexrl.launch import launch
changes = dict(serial=False, env_steps=0, match_period_seconds=0.2, pool_period_steps=200, pool_size=50)
if __name__ == "__main__":
    launch(self_play("impala", Path({out!r}), **changes))
"""


@pytest.mark.long
def test_pool_and_ratings_survive_kills_of_everything(tmp_path: Path) -> None:
    here = Path(__file__)
    program = tmp_path / "program.py"
    program.write_text(_RUN.format(tests=str(here.parents[1]), here=str(here.parent), out=str(tmp_path)))
    child = subprocess.Popen([sys.executable, str(program)], start_new_session=True, stdout=subprocess.DEVNULL)
    pool = OpponentPool(tmp_path / "run")
    try:
        before = _grown(pool, 4)
    finally:
        _kill_session(child.pid)
        child.wait(timeout=30)
    killed = pool.ratings()
    assert killed is not None
    assert len(killed.members) >= len(before.members)
    for member in killed.members:
        assert pool.weights(member.name)
    total = max(row["env_steps"] for row in read_rows(tmp_path / "run" / "metrics.jsonl") if "env_steps" in row)
    apexrl.resume(tmp_path / "run", env_steps=int(total) + 3000, show=False, trust=("apexrl",))
    after = pool.ratings()
    assert after is not None
    assert [member.name for member in after.members[: len(killed.members)]] == [one.name for one in killed.members]
    assert after.matches > killed.matches
    assert len(after.members) > len(killed.members)


def _grown(pool: OpponentPool, size: int) -> Any:
    deadline = time.monotonic() + 60.0
    while time.monotonic() < deadline:
        ratings = pool.ratings()
        if ratings is not None and len(ratings.members) >= size and ratings.matches >= 2:
            return ratings
        time.sleep(0.1)
    raise AssertionError("the pool did not grow")


def _kill_session(session: int) -> None:
    """SIGKILL to every process of a session, which the run's processes are."""
    mine = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == session:
                mine.append(int(entry.name))
    for pid in mine:
        os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("placement", ["redis", "listen", "ray"])
def test_other_hosts_do_not_see_the_pool(placement: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the pool lies in the run folder"):
        check(self_play("seed", tmp_path), placement)


@pytest.mark.parametrize(
    ("changes", "given", "text"),
    [
        ({"env": "CartPole-v1", "newest_share": 0.1}, "newest_share", "is for an environment of several agents"),
        ({"env": "x:parallel_env", "pool_size": 9}, "pool_size", "means nothing where all agents are learned"),
        ({"played_by": ("first",)}, "played_by", "is no NAMES=RUN"),
    ],
)
def test_settings_that_mean_nothing_are_refused(changes: dict[str, Any], given: str, text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=text):
        validate(self_play("impala", tmp_path, **changes), [given])


def test_stacked_frames_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--stack 2: policies of a pool see one frame"):
        launch(self_play("impala", tmp_path, stack=2))
