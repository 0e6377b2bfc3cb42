"""Episodes for somebody to look at: live pictures, and films of the best, the median and the worst."""

from __future__ import annotations

import io
import itertools
import json
import time
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
from PIL import Image
from run_folders import make_run

from apexrl.config import Config
from apexrl.config.convert import override
from apexrl.dashboard import player
from apexrl.errors import ConfigError, EnvError
from apexrl.evaluation.chosen_films import film_chosen
from apexrl.evaluation.shown_episodes import LEAST_HEIGHT, STRIP, Moment, drawn, moments

CARTPOLE = override(Config(), {"env": "CartPole-v1"})


class Unseen(gym.Env):
    """Renders nothing."""

    observation_space, action_space = gym.spaces.Box(-1.0, 1.0, (2,)), gym.spaces.Discrete(2)

    def __init__(self, render_mode=None):
        pass

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}


class Unprepared(Unseen):
    """Takes no render_mode."""

    def __init__(self):
        pass


@pytest.mark.parametrize(
    ("env", "words"),
    [
        (Unseen, r"Unseen: reset\(\) .*: it has no render\(\): pictures need an environment that"),
        (Unprepared, "Unprepared .*pictures need an environment that takes render_mode='rgb_array'"),
    ],
)
def test_an_environment_that_renders_nothing_says_so(env, words):
    config = override(Config(), {"env": env})
    with pytest.raises(EnvError, match=words):
        next(moments(SimpleNamespace(agent=PushLeft()), config, 1))


class PushLeft:
    """An agent that always pushes left: episodes of some ten steps."""

    def __init__(self, state=None):
        self.state = state

    def act(self, observations, state, exploration, greedy):
        assert greedy
        return np.zeros(len(exploration), np.int64), {}, self.state

    def expected_returns(self, observations):
        return np.full(len(observations["observation"]), 7.5, np.float32)


def loaded(**options):
    return SimpleNamespace(agent=PushLeft(**options), checkpoint=None)


def test_an_episode_ends_with_its_return_and_the_next_begins_anew():
    playing = moments(loaded(), CARTPOLE, 3)
    first = list(itertools.takewhile(lambda moment: not moment.ended, playing))
    begun = next(playing)
    playing.close()
    assert [moment.step for moment in first] == list(range(len(first)))
    assert [moment.episode_return for moment in first] == list(map(float, range(len(first))))
    assert all(moment.expected == 7.5 and moment.picture.shape == (400, 600, 3) for moment in first)
    assert (begun.step, begun.episode_return) == (0, 0.0)


def test_the_last_picture_has_the_environment_s_own_return():
    playing = moments(loaded(), CARTPOLE, 3)
    end = next(moment for moment in playing if moment.ended)
    playing.close()
    assert end.episode_return == end.step > 5


def test_of_a_recurrent_agent_only_the_first_estimate_is_of_its_moment():
    playing = moments(loaded(state={"h": np.ones((1, 2), np.float32)}), CARTPOLE, 3)
    some = list(itertools.islice(playing, 4))
    playing.close()
    assert [moment.expected for moment in some] == [7.5, None, None, None]


def test_an_environment_that_draws_nothing_is_refused():
    config = override(Config(), {"env": "apexrl.envs.toy:Corridor-v0"})
    with pytest.raises(EnvError, match="render"):
        next(moments(loaded(), config, 0))


def test_small_pictures_are_enlarged_and_large_ones_reduced_to_even_sides():
    for height, width in ((84, 84), (210, 160), (401, 603), (2000, 3001)):
        moment = Moment(np.zeros((height, width, 3), np.uint8), 5, 1.0, 2.0, False)
        picture = drawn(drawn_before := moment, [1.0, 3.0], "episode 1")
        assert drawn_before.picture.shape == (height, width, 3)
        assert picture.shape[0] % 2 == picture.shape[1] % 2 == 0
        assert LEAST_HEIGHT * 0.7 < picture.shape[0] - STRIP <= 960
        assert picture[-STRIP:].max() > 200  # text and line


@pytest.mark.long
def test_the_best_the_median_and_the_worst_are_kept(tmp_path):
    kept = film_chosen(loaded(), CARTPOLE, tmp_path / "films", 3, 11)
    assert set(kept) == {"best", "median", "worst"}
    assert sorted(path.name for path in (tmp_path / "films").iterdir()) == [
        "best.mp4", "films.json", "median.mp4", "worst.mp4",
    ]  # fmt: skip
    assert all(path.read_bytes()[4:8] == b"ftyp" for path in kept.values())
    told = json.loads((tmp_path / "films" / "films.json").read_text())
    best, median, worst = (told["films"][name]["return"] for name in ("best", "median", "worst"))
    assert best == max(told["returns"])
    assert best >= median >= worst == min(told["returns"])
    (tmp_path / "films" / ".episode-0007.mp4").write_bytes(b"of a process that was killed")
    film_chosen(loaded(), CARTPOLE, tmp_path / "films", 1, 11)
    assert sorted(path.name for path in (tmp_path / "films").iterdir()) == ["best.mp4", "films.json"]


def test_films_that_cannot_be_made_leave_nothing(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="--record"):
        film_chosen(loaded(), CARTPOLE, tmp_path / "films", 0, 1)
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot write films"):
        film_chosen(loaded(), CARTPOLE, tmp_path / "file", 1, 1)
    agent = loaded()
    monkeypatch.setattr(agent.agent, "act", lambda *args, **kwargs: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        film_chosen(agent, CARTPOLE, tmp_path / "films", 2, 1)
    assert list((tmp_path / "films").iterdir()) == []


@pytest.fixture
def playing(tmp_path, monkeypatch):
    """A player of a run without weights."""
    run = make_run(tmp_path, "a", env="CartPole-v1")
    monkeypatch.setattr(player, "load_agent", lambda folder, path, config: loaded())
    monkeypatch.setattr(player, "AGAIN_SECONDS", 0.05)
    one = player.player_of(run, "a")
    one.start()
    yield one, run
    one.stop()
    assert not one._thread.is_alive()


def wait_for(condition, seconds=20.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_player_shows_pictures_once_there_are_weights_and_rests_when_nobody_looks(playing, monkeypatch):
    one, run = playing
    assert one.newest_picture() == (0, b"")
    wait_for(lambda: one.newest_picture() and "no weights" in one.state()["trouble"])
    (run / "checkpoints").mkdir()
    (run / "checkpoints" / "best.safetensors").write_bytes(b"")
    number, picture = 0, b""
    deadline = time.monotonic() + 20
    while number < 3 and time.monotonic() < deadline:
        number, picture = one.newest_picture()
        time.sleep(0.02)
    assert Image.open(io.BytesIO(picture)).size == (600, 400 + STRIP)
    assert one.state()["trouble"] == ""
    monkeypatch.setattr(player, "UNSEEN_SECONDS", 0.2)
    time.sleep(0.5)
    rested = one._newest_picture[0]
    time.sleep(0.4)
    assert one._newest_picture[0] == rested


def test_an_episode_without_an_end_does_not_go_on_for_ever(playing, monkeypatch):
    one, run = playing
    monkeypatch.setattr(player, "LONGEST_STEPS", 5)  # no episode of CartPole is as short
    monkeypatch.setattr(player, "MOST_PER_SECOND", 1e3)
    (run / "checkpoints").mkdir()
    (run / "checkpoints" / "best.safetensors").write_bytes(b"")
    wait_for(lambda: one.newest_picture() and one.state()["episode"] >= 3)
    assert one.state()["last_return"] is None


def test_a_player_tells_what_is_wrong_and_tries_again(playing, monkeypatch):
    one, run = playing

    def broken(*args, **kwargs):
        raise OSError("the disk is gone")

    monkeypatch.setattr(player, "load_agent", broken)
    (run / "checkpoints").mkdir()
    (run / "checkpoints" / "best.safetensors").write_bytes(b"")
    wait_for(lambda: one.newest_picture() and "the disk is gone" in one.state()["trouble"])
    monkeypatch.setattr(player, "load_agent", lambda folder, path, config: loaded())
    wait_for(lambda: one.newest_picture()[0] > 0 and not one.state()["trouble"])
