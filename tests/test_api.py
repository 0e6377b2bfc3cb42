from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import apexrl
from apexrl.agents import agent_class
from apexrl.config import AgentConfig, Config, EnvConfig
from apexrl.config.convert import override
from apexrl.envs import make_vector
from apexrl.envs.toy import Endless
from apexrl.errors import ConfigError, EnvError, SnapshotError, SpecError, WorkerError
from apexrl.evaluation.loaded_agent import LoadedAgent
from apexrl.report import run_charts
from apexrl.run import checkpoint
from apexrl.run.folder import RunFolder, make_summary
from apexrl.run.metrics import RunLog
from apexrl.run.status import Observer, RunStatus
from apexrl.spec import LAST_ACTION, LAST_REWARD, ActionSpec, EnvSpec, Field
from new_folders import new_folder

SMALL = Config(env=EnvConfig(env="CartPole-v1"), agent=AgentConfig(hidden=(8,)), name="run")


def a_run(tmp_path: Path, config: Config = SMALL, best: bool = True) -> RunFolder:
    """A folder as a launcher leaves it, with an agent that never learned."""
    folder = new_folder(Config(**{**vars(config), "out": str(tmp_path)}))
    env = make_vector(config.env, 1, 0)
    folder.write_spec(env.spec)
    env.close()
    agent: Any = agent_class("dqn")(env.spec, config.agent, "cpu", 3)
    if config.agent.target_acts:  # as after some updates, by which it does not follow at once
        agent._network.target_parameters.vector.neg_()
    checkpoint.save(folder.checkpoints, agent.state_dict(), {"updates": 5})
    if best:
        about = {"updates": 4, "env_steps": 40, "eval_return": 9.0}
        checkpoint.save_best(folder.checkpoints, agent.weights(), about)
    return folder


@pytest.fixture
def no_pictures() -> None:
    """Here they are looked at."""


@pytest.fixture
def fake_launch(monkeypatch: pytest.MonkeyPatch) -> list[Config]:
    """A launcher that starts nothing: it tells its observers, three times, and stops when asked to."""
    seen: list[Config] = []

    def launch(config: Config, observers: Sequence[Observer], resume: Path | None, **_: Any) -> dict[str, Any]:
        seen.append(config)
        folder = RunFolder.open(resume) if resume else new_folder(config)
        everyone = [RunLog(folder.path), *observers]
        for observer in everyone:
            observer.started(config, folder.path)
        status, stopped_by = RunStatus(), "env_steps"
        for steps in (10, 20, 30):
            status = RunStatus(phase="training", env_steps=steps, elapsed_seconds=steps / 10)
            if [observer for observer in everyone if observer.update(status)]:
                stopped_by = "callback"
                break
        if config.agent.gamma == 0.5:
            for observer in everyone:
                observer.finished({"stopped_by": "error"})
            raise WorkerError("actor-0 failed")
        summary = make_summary(config, status, stopped_by=stopped_by)
        folder.write_summary(summary)
        for observer in everyone:
            observer.finished(summary)
        return summary

    monkeypatch.setattr("apexrl.launch.launch", launch)
    return seen


def test_train_takes_a_preset_an_env_and_settings(tmp_path: Path, fake_launch: list[Config]) -> None:
    run = apexrl.train("cartpole", actors=5, env="CartPole-v0", out=str(tmp_path), name="x", show=False)
    (config,) = fake_launch
    assert (config.preset, config.actor.actors, config.env.env) == ("cartpole", 5, "CartPole-v0")
    assert run.path == tmp_path / "x"
    assert run.summary["env_steps"] == 30
    assert run.summary["stopped_by"] == "env_steps"
    assert (run.path / "learning_curve.png").stat().st_size > 1000
    assert repr(run) == f"Run({str(run.path)!r})"


def test_an_environment_of_ones_own_by_its_name(tmp_path: Path, fake_launch: list[Config]) -> None:
    for env in ("apexrl.envs.toy:Endless", Endless):
        apexrl.train(env=env, agent="dqn", out=str(tmp_path), show=False)
        assert fake_launch.pop().env.env is Endless


def test_callbacks_see_statuses_and_stop(tmp_path: Path, fake_launch: list[Config]) -> None:
    seen: list[int] = []

    def until_20(status: RunStatus) -> bool:
        seen.append(status.env_steps)
        return status.env_steps >= 20

    run = apexrl.train(SMALL, callbacks=[until_20], out=str(tmp_path), show=False)
    assert seen == [10, 20]
    assert run.summary["stopped_by"] == "callback"


def test_a_failed_run_still_has_its_curve(tmp_path: Path, fake_launch: list[Config]) -> None:
    with pytest.raises(WorkerError, match="actor-0 failed"):
        apexrl.train(SMALL, out=str(tmp_path), gamma=0.5, show=False)
    assert (tmp_path / "run" / "learning_curve.png").exists()


def test_resume_keeps_the_folder_and_the_settings(tmp_path: Path, fake_launch: list[Config]) -> None:
    first = apexrl.train("cartpole", out=str(tmp_path), name="x", actors=7, show=False)
    again = apexrl.resume(first.path, minutes=3, show=False)
    assert again.path == first.path
    assert (fake_launch[1].actor.actors, fake_launch[1].stop.minutes) == (7, 3.0)


def test_a_folder_of_another_agent_than_it_says_is_refused(tmp_path: Path, fake_launch: list[Config]) -> None:
    first = apexrl.train("cartpole", out=str(tmp_path), name="x", agent="double_dqn", show=False)
    path = first.path / "config.toml"
    path.write_text(path.read_text().replace('agent = "double_dqn"', 'agent = "iqn"'))
    for use in (apexrl.resume, apexrl.load, apexrl.evaluate):
        with pytest.raises(ConfigError, match="agent iqn stands for --distribution implicit"):
            use(first.path)
    assert len(fake_launch) == 1


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: apexrl.train(), "say what to train"),
        (lambda: apexrl.train("cartpol"), "did you mean 'cartpole'"),
        (lambda: apexrl.train("cartpole", actorz=3), "did you mean 'actors'"),
        (lambda: apexrl.train("cartpole", agent=LoadedAgent), "agent= is a name, not <class .*'package.module:Class'"),
        (lambda: apexrl.train("cartpole", actors=0), "--actors must be at least 1"),
        (lambda: apexrl.load("no/such/run"), "no/such/run is not a run folder"),
    ],
)
def test_mistakes_are_told(call: Callable[[], Any], words: str, fake_launch: list[Config]) -> None:
    with pytest.raises(ConfigError, match=words):
        call()
    assert not fake_launch


def test_load_acts_for_one_and_for_many(tmp_path: Path) -> None:
    folder = a_run(tmp_path)
    agent = apexrl.load(folder.path)
    assert agent.checkpoint == checkpoint.best(folder.checkpoints)
    observations = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    many = agent.act(observations)
    assert many.shape == (5,)
    one_by_one = [agent.act(row) for row in observations]
    assert all(isinstance(action, int) for action in one_by_one)
    np.testing.assert_array_equal(many, one_by_one)
    env = gym.make("CartPole-v1")
    observation, _ = env.reset(seed=1)
    assert env.action_space.contains(agent.act(observation))
    env.close()


@pytest.mark.parametrize("target_acts", [False, True])
def test_latest_and_best_are_the_same_agent_here(target_acts: bool, tmp_path: Path) -> None:
    folder = a_run(tmp_path, override(SMALL, {"target_acts": target_acts}))
    observation = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
    best, latest = (apexrl.load(folder.path, which) for which in ("best", "latest"))
    assert latest.checkpoint == checkpoint.latest(folder.checkpoints)
    np.testing.assert_array_equal(best.act(observation), latest.act(observation))
    by_path = apexrl.load(folder.path, str(latest.checkpoint))
    np.testing.assert_array_equal(by_path.act(observation), latest.act(observation))


def test_without_a_best_the_newest_is_taken(tmp_path: Path) -> None:
    folder = a_run(tmp_path, best=False)
    agent = apexrl.load(folder.path)
    assert agent.checkpoint is not None
    assert agent.checkpoint.name == "generation-0000-update-000000005.safetensors"


def test_a_run_without_its_env_spec_makes_the_environment(tmp_path: Path) -> None:
    folder = a_run(tmp_path)
    (folder.path / "env_spec.json").unlink()
    assert apexrl.load(folder.path).act(np.zeros(4, np.float32)) in (0, 1)


def test_checkpoints_that_do_not_fit(tmp_path: Path) -> None:
    folder = a_run(tmp_path)
    checkpoint.save_best(folder.checkpoints, {"other": np.ones(3)}, {"updates": 1})
    with pytest.raises(SnapshotError, match=r"best.safetensors does not fit agent dueling_dqn"):
        apexrl.load(folder.path)
    with pytest.raises(ConfigError, match="there is no checkpoint newest"):
        apexrl.load(folder.path, "newest")
    for path in folder.checkpoints.iterdir():
        path.unlink()
    with pytest.raises(SnapshotError, match=r"has no checkpoint: .* or they were moved or deleted"):
        apexrl.load(folder.path)
    folder.checkpoints.rmdir()
    with pytest.raises(SnapshotError, match="has no folder checkpoints: "):
        apexrl.load(folder.path)


class Echo:
    """An agent that always does the same, and keeps what it was shown."""

    def __init__(self, action: Any = 0) -> None:
        self.action = np.asarray(action, np.int64)
        self.seen: list[dict[str, Any]] = []

    def act(self, observations: Any, state: Any, exploration: Any, greedy: bool = False) -> Any:
        assert greedy
        self.seen.append({name: np.array(value) for name, value in observations.items()})
        count = len(exploration)
        return np.broadcast_to(self.action, (count, *self.action.shape)), {}, (state or 0) + 1


def test_frames_are_stacked_until_reset() -> None:
    echo = Echo()
    agent = LoadedAgent(echo, EnvSpec({"observation": Field((2,), "float32")}, ActionSpec(n=2), stack=3))  # type: ignore[arg-type]
    for value in (1.0, 2.0, 3.0):
        agent.act(np.full(2, value))
    agent.reset()
    agent.act(np.full(2, 4.0))
    windows = [seen["observation"][0, :, 0].tolist() for seen in echo.seen]
    assert windows == [[1, 1, 1], [1, 1, 2], [1, 2, 3], [4, 4, 4]]
    assert echo.seen[0]["observation"].shape == (1, 3, 2)
    assert echo.seen[0]["observation"].dtype == np.float32


def test_dict_observations_and_starts() -> None:
    spec = EnvSpec(
        {"observation/image": Field((2, 2), "uint8"), "observation/inner/mode": Field((), "int64")},
        ActionSpec(n=3, start=-1),
        categories={"observation/inner/mode": 4},
        starts={"observation/inner/mode": 10},
    )
    echo = Echo()
    agent = LoadedAgent(echo, spec)  # type: ignore[arg-type]
    assert agent.act({"image": np.ones((2, 2), np.uint8), "inner": {"mode": 12}}) == -1
    assert echo.seen[0]["observation/inner/mode"].tolist() == [2]
    assert echo.seen[0]["observation/image"].shape == (1, 2, 2)
    batch = agent.act({"image": np.ones((5, 2, 2), np.uint8), "inner": {"mode": np.full(5, 13)}})
    assert batch.tolist() == [-1] * 5
    shown = {"image": np.ones((2, 2), np.uint8), "inner": {"mode": 12}}
    assert agent.act(shown | {"more": 3}) == -1  # which training would not look at either
    with pytest.raises(SpecError, match="without action masks: it would not keep to one"):
        agent.act(shown | {"action_mask": np.ones(3)})
    with pytest.raises(SpecError, match="observation/inner/mode holds a value that is none of its space's 10 to 13"):
        agent.act(shown | {"inner": {"mode": 14}})
    with pytest.raises(SpecError, match="but got"):
        agent.act({"image": np.ones((2, 2))})
    with pytest.raises(SpecError, match=r"observation/image has shape \(3, 3\)"):
        agent.act({"image": np.ones((3, 3)), "inner": {"mode": 12}})
    with pytest.raises(SpecError, match=r"holds <U1 values, where the agent sees numbers"):
        agent.act({"image": np.ones((2, 2)), "inner": {"mode": "x"}})
    with pytest.raises(SpecError, match="different batch sizes"):
        agent.act({"image": np.ones((2, 2)), "inner": {"mode": np.full(5, 12)}})
    for image in (np.full((2, 2), 0.5), np.full((2, 2), 256), np.full((2, 2), np.nan)):
        with pytest.raises(SpecError, match=r"observation/image has \w+ values that uint8 does not hold"):
            agent.act({"image": image, "inner": {"mode": 12}})


@pytest.mark.parametrize("bad", [np.nan, np.inf, None])
def test_no_action_is_known_where_an_observation_is_no_number(bad: Any) -> None:
    agent = LoadedAgent(Echo(), EnvSpec({"observation": Field((2,), "float32")}, ActionSpec(n=2)))  # type: ignore[arg-type]
    with pytest.raises(SpecError, match="observation holds NaN or infinity"):
        agent.act([0.0, bad])


def test_a_number_that_float32_does_not_hold_is_refused_as_such() -> None:
    agent = LoadedAgent(Echo(), EnvSpec({"observation": Field((2,), "float32")}, ActionSpec(n=2)))  # type: ignore[arg-type]
    with pytest.raises(SpecError, match="observation has float64 values that float32 does not hold"):
        agent.act(np.array([0.0, 1e300]))


def test_an_agent_that_saw_its_past_says_what_it_needs() -> None:
    spec = EnvSpec(
        {name: Field((2,), "float32") for name in ("observation/obs", LAST_ACTION, LAST_REWARD)}, ActionSpec(n=2)
    )
    agent = LoadedAgent(Echo(), spec)  # type: ignore[arg-type]
    with pytest.raises(SpecError, match=r"wrap your environment in apexrl\.envs\.LastActionReward"):
        agent.act(np.zeros(2))


def test_several_choices_are_given_as_the_environment_counts_them() -> None:
    spec = EnvSpec({"observation": Field((2,), "float32")}, ActionSpec((2,), nvec=(2, 3), starts=(5, -1)))
    agent = LoadedAgent(Echo(np.array([1, 2])), spec)  # type: ignore[arg-type]
    assert agent.act(np.zeros(2)).tolist() == [6, 1]
    assert agent.act(np.zeros((3, 2))).tolist() == [[6, 1]] * 3


def test_evaluate_plays_exactly_what_was_asked(tmp_path: Path) -> None:
    folder = a_run(tmp_path)
    result = apexrl.evaluate(folder.path, episodes=7)
    assert len(result.returns) == 7
    assert result.mean == pytest.approx(np.mean(result.returns))
    assert result.std == pytest.approx(np.std(result.returns))
    assert result.checkpoint == checkpoint.best(folder.checkpoints)
    assert apexrl.evaluate(apexrl.Run(folder.path, {}), episodes=7).returns == result.returns
    with pytest.raises(ConfigError, match="--episodes must be at least 1"):
        apexrl.evaluate(folder.path, 0)


def test_evaluate_may_act_otherwise_than_the_run_did(tmp_path: Path) -> None:
    folder = a_run(tmp_path)
    own = apexrl.evaluate(folder.path, 4)
    wild = apexrl.evaluate(folder.path, 4, epsilon=1.0, sticky=0.25, noops=3)
    assert (own.protocol, wild.protocol) == ("greedy", "greedy, epsilon 1, sticky 0.25, noops 3")
    assert own.returns != wild.returns
    assert wild.returns == apexrl.evaluate(folder.path, 4, epsilon=1.0, sticky=0.25, noops=3).returns
    with pytest.raises(ConfigError, match=r"--actions sampled means nothing to agent .* --epsilon 0\.05"):
        apexrl.evaluate(folder.path, 4, actions="sampled")
    with pytest.raises(ConfigError, match="--eval-epsilon must be between 0 and 1, not 2"):
        apexrl.evaluate(folder.path, 4, epsilon=2.0)


def test_a_run_knows_what_its_weights_reach() -> None:
    run = apexrl.Run(Path("x"), {"final_eval_return": 3.0, "last_weights_return": 2.0})
    assert (run.best_weights_return, run.last_weights_return) == (3.0, 2.0)
    assert apexrl.Run(Path("x"), {}).last_weights_return is None


def test_films(tmp_path: Path) -> None:
    folder = a_run(tmp_path)
    result = apexrl.evaluate(folder.path, 2, tmp_path / "films")
    assert [film.name for film in result.films] == ["episode-001.mp4", "episode-002.mp4"]
    assert all(film.read_bytes()[4:8] == b"ftyp" for film in result.films)


def test_films_of_an_agent_that_sees_its_last_action(tmp_path: Path) -> None:
    config = Config(env=EnvConfig(env="CartPole-v1", last_action_reward=True), agent=AgentConfig(hidden=(8,)))
    assert len(apexrl.evaluate(a_run(tmp_path, config).path, 1, tmp_path / "films").films) == 1


def test_what_cannot_be_filmed(tmp_path: Path) -> None:
    folder = a_run(tmp_path, Config(env=EnvConfig(env="apexrl.envs.toy:Corridor-v0"), agent=AgentConfig(hidden=(8,))))
    with pytest.raises(EnvError):
        apexrl.evaluate(folder.path, 1, tmp_path / "films")


def test_the_agent_of_a_run_is_loaded_when_asked_for(tmp_path: Path) -> None:
    folder = a_run(tmp_path)
    run = apexrl.Run(folder.path)
    assert run.summary == {}
    assert run.agent is run.agent
    assert run.agent.act(np.zeros(4, np.float32)) in (0, 1)


def test_a_curve_that_fails_does_not_hide_how_the_run_ended(
    tmp_path: Path, fake_launch: list[Config], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> bool:
        raise OSError("disk full")

    monkeypatch.setattr("apexrl.report.curves.learning_curve", fail)
    with pytest.raises(WorkerError, match="actor-0 failed"):
        apexrl.train(SMALL, out=str(tmp_path), gamma=0.5)
    assert "could not be drawn: OSError: disk full" in "".join(capsys.readouterr().out.splitlines())
    assert apexrl.train(SMALL, out=str(tmp_path), show=False).summary["stopped_by"] == "env_steps"


def test_no_curve_without_metrics(tmp_path: Path) -> None:
    assert not run_charts.draw_curve(a_run(tmp_path), SMALL)
