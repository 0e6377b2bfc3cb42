"""What a comparison keeps equal, in which order it runs, and what it refuses before anything runs."""

from __future__ import annotations

import dataclasses
import itertools
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_runs import FakeRuns, a_plan, nothing, quiet, told

from apexrl import compare, topologies
from apexrl.cli import main
from apexrl.compare.plan import EQUAL, Arm, Plan, differences, several_agents
from apexrl.config import Config, convert
from apexrl.presets import PRESETS, with_agent, with_topology


def test_terms_are_equal_and_the_rest_is_the_presets() -> None:
    plan = compare.plan("cartpole", ["apex"], ["dqn", "c51", "r2d2"], seeds=2, minutes=1.0, env_steps=5000)
    flats = [convert.flat(arm.config) for arm in plan.arms]
    for name in EQUAL:
        assert flats[0][name] == flats[1][name] == flats[2][name], name
    tuned = with_agent(PRESETS["cartpole"].config, "r2d2")
    assert dict(plan.arms[2].put_aside) == {"hidden": tuned.agent.hidden}
    assert not plan.arms[0].put_aside
    r2d2 = plan.arms[2].config
    assert r2d2.agent.hidden == PRESETS["cartpole"].config.agent.hidden != tuned.agent.hidden
    assert (r2d2.agent.sequence_length, r2d2.replay.capacity) == (tuned.agent.sequence_length, tuned.replay.capacity)
    assert (plan.arms[1].config.agent.v_max, plan.arms[0].config.agent.distribution) == (100.0, "expected")
    assert (plan.config.stop.minutes, plan.config.stop.env_steps, plan.config.stop.stop_at_return) == (1.0, 5000, None)
    assert plan.goal == PRESETS["cartpole"].config.stop.stop_at_return


def test_the_goal_is_one_for_all() -> None:
    """The preset has another one for TD3."""
    plan = compare.plan("pendulum", (), ["sac", "td3"], until_goal=True)
    assert plan.goal == -160.0
    assert [arm.config.stop.stop_at_return for arm in plan.arms] == [-160.0, -160.0]
    assert plan.arms[1].put_aside["stop_at_return"] == -150.0
    assert plan.config.stop.env_steps == 30_000  # the preset's own, as no budget was given
    shorter = compare.plan("pendulum", (), ["sac"], minutes=2.0)
    assert (shorter.config.stop.env_steps, shorter.config.stop.minutes) == (0, 2.0)


def test_a_persons_own_settings_hold_for_all() -> None:
    def change(config: Config) -> Config:
        return convert.override(config, {"hidden": (32,), "stop_at_return": 50.0, "minutes": 99.0})

    plan = a_plan(("dqn", "r2d2"), change=change)
    assert [arm.config.agent.hidden for arm in plan.arms] == [(32,), (32,)]
    assert plan.goal == 50.0
    assert plan.config.stop.minutes == 1.0


def test_seeds_take_turns() -> None:
    plan = a_plan(seeds=3)
    order = [(seed, arm.agent) for arm, seed in plan.order()]
    assert order == list(itertools.product((1, 2, 3), ("dqn", "c51")))
    config = plan.arms[1].run(3, Path("there"))
    assert (config.seed, config.name, config.out) == (3, "apex-c51-seed3", "there")
    own = Arm(convert.override(plan.config, {"agent": "my.agents:Mine"}))
    assert own.run(1, Path()).name == "apex-my.agents-Mine-seed1"


def test_without_agents_every_topology_takes_one_that_it_runs() -> None:
    acting = [name for name in topologies.TOPOLOGIES if name != "offline"]  # which wants a dataset
    plan = compare.plan("cartpole", [",".join(acting), "apex"], seeds=1, env_steps=100)
    assert [arm.topology for arm in plan.arms] == acting  # each once
    for arm in plan.arms:
        topologies.check_agent(arm.topology, arm.agent)
        convert.check_values(arm.config)


def test_topologies_with_agents_of_their_own_are_said_to_differ_in_both() -> None:
    several = compare.plan("cartpole", ["apex", "impala"], seeds=1, env_steps=100)
    assert {arm.agent for arm in several.arms} == {"dueling_dqn", "impala"}
    assert "dueling_dqn, impala" in several_agents(several)
    assert "--agents" in several_agents(several)
    assert not several_agents(compare.plan("cartpole", ["apex", "gorila"], ["dqn"], seeds=1, env_steps=100))
    assert not several_agents(a_plan(("dqn", "c51")))  # agents are what is compared


def test_what_differs_is_told() -> None:
    plan = a_plan(("dqn", "c51"))
    found = differences(plan)
    assert found["distribution"] == ["expected", "categorical"]
    assert found["v_max"] == [None, 100.0]  # means nothing to dqn
    assert "atoms" not in found
    assert "huber" not in found  # c51 never reads it, and dqn has the default
    assert "quantiles" not in found
    assert "hidden" not in found
    assert "agent" not in found


@pytest.mark.parametrize("agents", [[], ["a2c"]])
def test_what_the_preset_has_for_an_agent_in_a_topology_holds(agents: list[str]) -> None:
    (arm,) = compare.plan("cartpole", ["ga3c"], agents, seeds=1, minutes=1.0).arms
    tuned = with_topology(PRESETS["cartpole"].config, "ga3c", arm.agent)
    assert arm.config.wiring.training_min_batch == tuned.wiring.training_min_batch
    assert arm.config.learner.batch_size == tuned.learner.batch_size != PRESETS["cartpole"].config.learner.batch_size


def test_pairs_that_cannot_run_are_left_out_and_named(tmp_path: Path) -> None:
    plan = compare.plan("cartpole", ["apex,impala,seed,a3c"], ["dqn,impala", "ppo"], seeds=1, minutes=1.0)
    labels = [arm.label for arm in plan.arms]
    assert labels == ["apex · dqn", "impala · impala", "impala · ppo", "seed · dqn", "seed · impala", "seed · ppo",
                      "a3c · impala"]  # fmt: skip
    assert list(plan.left_out) == ["apex · impala", "apex · ppo", "impala · dqn", "a3c · dqn", "a3c · ppo"]
    words = "a3c · ppo, which has --epochs 4 --minibatches 4, and not --epochs 1 --minibatches 1"
    console = quiet()
    compare.compare(plan, tmp_path, console, run=FakeRuns(), check=nothing)
    assert f"\nleft out: {words}\n" in told(console)
    assert f"; {words}." in (tmp_path / "compare.md").read_text(encoding="utf-8")
    assert json.loads((tmp_path / "compare.json").read_text(encoding="utf-8"))["left_out"] == dict(plan.left_out)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--topologies", "apex", "--minutes", "1"], "give an environment: --env PRESET (cartpole, "),
        (["--env", "cartpole", "--minutes", "1"], "give what to compare: --topologies a,b,c, or --agents x,y"),
        (["--env", "cartpole", "--topologies", "apx", "--minutes", "1"], "--topologies: there is no topology 'apx'"),
        (["--env", "cartpole", "--agents", "dqn,c15", "--minutes", "1"], "--agents: there is no agent 'c15'"),
        (["--env", "cartpole", "--agents", "dqn"], "--minutes M, --env-steps N or both; cartpole has no limit of its"),
        (["--env", "cartpole", "--agents", "dqn", "--minutes", "0"], "--minutes must be more than 0, not 0"),
        (["--env", "cartpole", "--agents", "dqn", "--minutes", "nan"], "--minutes must be more than 0, not nan"),
        (["--env", "cartpole", "--agents", "dqn", "--env-steps", "-5"], "--env-steps must be more than 0, not -5"),
        (["--env", "cartpole", "--agents", "dqn", "--minutes", "1", "--seeds", "0"], "--seeds must be at least 1"),
        (["cartpole", "--agents", "dqn", "--minutes", "1", "--seed", "4"], "--seed means nothing to apexrl compare"),
        (["cartpole", "--agents", "dqn", "--minutes", "1", "--topology=apex"], "say --topologies"),
        (["cartpole", "--agents", "dqn", "--minutes", "1", "--redis", "redis://h"], "compared on one machine"),
        (["cartpole", "--agents", "dqn,c51", "--minutes", "1", "--actors", "0"], "--actors must be at least 1, not 0"),
        (["cartpole", "--agents", "dqn,c51", "--minutes", "1", "--atoms", "21"], "--atoms means nothing with"),
        (["cartpole", "--agents", "dqn", "--minutes", "1", "--actorz", "3"], "--actors"),
        (["cartpole", "--agents", "dqn", "catch", "--minutes", "1"], "there is no agent 'catch'"),
        (["--env", "CartPole-v1", "--agents", "dqn", "--minutes", "1", "--until-goal"], "give one with --stop-at-retu"),
        (["cartpole", "--agents", "dqn", "--minutes", "1", "--out", "taken/x"], "cannot write to --out "),
        (
            ["cartpole", "--topologies", "apex", "--agents", "dqn,impala", "--minutes", "1"],
            "--agents: agent impala cannot run with any of the others: apex · impala, which learns from unrolls",
        ),
        (
            ["cartpole", "--topologies", "apex,impala", "--agents", "dqn", "--minutes", "1"],
            "--topologies: topology impala cannot run with any of the others: impala · dqn, which learns from",
        ),
    ],
)
def test_mistakes_are_told_before_anything_runs(
    words: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    Path("taken").touch()
    assert main.main(["compare", *words]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


@pytest.mark.parametrize(
    ("words", "left_out"),
    [
        (["--topologies", "a3c,impala", "--agents", "ppo,a2c", "--minutes", "1", "--actors", "4"], ["a3c · ppo"]),
        (["--topologies", "impala", "--agents", "a2c", "--env-steps", "100000", "--anneal"], []),
    ],
)
def test_flags_of_train_refuse_nothing_that_is_left_out_or_still_to_come(
    words: list[str], left_out: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plans: list[Plan] = []
    report = SimpleNamespace(interrupted=False, failed=False)
    monkeypatch.setattr(compare, "compare", lambda plan, out: plans.append(plan) or report)
    assert main.main(["compare", "--env", "cartpole", *words]) == 0
    assert list(plans[0].left_out) == left_out


def test_an_environment_that_is_not_there_is_told_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The real check, in a process of its own."""
    monkeypatch.chdir(tmp_path)
    assert main.main(["compare", "cartpol", "--agents", "dqn", "--minutes", "1"]) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert "--env cartpol (did you mean 'cartpole'?): " in told
    assert not list(tmp_path.iterdir())


def test_an_agent_that_the_environment_does_not_suit_is_named(tmp_path: Path) -> None:
    """The real check: actions of CartPole are no box."""
    with pytest.raises(Exception, match=r"apex · sac: .*[Bb]ox"):
        compare.compare(a_plan(("sac",)), tmp_path, quiet(), run=FakeRuns())


@pytest.mark.parametrize(
    ("report", "code"),
    [
        (SimpleNamespace(interrupted=False, failed=[]), 0),
        (SimpleNamespace(interrupted=False, failed=[1]), 1),
        (SimpleNamespace(interrupted=True, failed=[1]), 130),
    ],
)
def test_exit_codes_and_every_flag(report: Any, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[Plan, Any]] = []

    def fake(plan: Plan, out: Any) -> Any:
        seen.append((plan, out))
        return report

    monkeypatch.setattr("apexrl.compare.compare", fake)
    words = ["--env", "cartpole", "--topologies", "apex", "--agents", "dqn,c51", "iqn", "--seeds", "2", "--minutes",
             "0.5", "--env-steps", "900", "--until-goal", "--stop-at-return", "40", "--actors", "3", "--hidden", "8",
             "4", "--env-kwargs", "a", "1", "--serial"]  # fmt: skip
    assert main.main(["compare", *words, "--out", "there"]) == code
    plan, out = seen[0]
    assert out == "there"
    assert [arm.label for arm in plan.arms] == ["apex · dqn", "apex · c51", "apex · iqn"]
    assert list(plan.seeds) == [1, 2]
    assert plan.goal == 40.0
    for arm in plan.arms:
        config = arm.config
        assert dataclasses.astuple(config.stop)[:3] == (900, 0.5, 40.0)
        assert (config.actor.actors, config.agent.hidden, config.env.env_kwargs) == (3, (8, 4), {"a": 1})
        assert config.serial
    assert main.main(["compare", "cartpole", "--agents", "dqn", "--minutes", "1"]) == code
    assert seen[1][1] == Path("comparisons/cartpole")
    assert compare.default_out(dataclasses.replace(plan, env="my.sim:Plant-v0")) == Path("comparisons/plant-v0")
