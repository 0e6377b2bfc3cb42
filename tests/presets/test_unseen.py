"""What a run without a preset starts from: ``--agent auto``, and that whatever is given wins."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from env_kinds import FAST, SLOW, facts

import apexrl
from apexrl import agents, compare, topologies
from apexrl.agents import default_settings, unread
from apexrl.agents.env_facts import EnvFacts
from apexrl.cli import main
from apexrl.compare.plan import terms
from apexrl.config import Config, convert
from apexrl.config.convert import flat, override
from apexrl.errors import ConfigError
from apexrl.presets import unseen
from apexrl.presets.choice import AUTO, choose
from apexrl.report.plain_lines import title
from apexrl.run.folder import make_summary
from apexrl.run.status import RunStatus
from apexrl.spec import ActionSpec
from apexrl.topologies.validation import validate


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> list[Config]:
    """No environment is made: all are discrete vectors and slow. Collects what would be looked at."""
    found: list[Config] = []

    def look(config: Config, measure: bool) -> EnvFacts:
        found.append(config)
        return facts(step=SLOW if measure else None)

    monkeypatch.setattr("apexrl.launch.env_look.env_facts", look)
    monkeypatch.setattr(sys.modules["apexrl.compare.plan"], "env_facts", look)
    return found


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, looked: list[Config]) -> list[Config]:
    """Collects what would be run."""
    runs: list[Config] = []

    def run(config: Config, **_: Any) -> Any:
        runs.append(config)
        return SimpleNamespace(summary={"stopped_by": "env_steps"})

    monkeypatch.setattr("apexrl.api.run", run)
    monkeypatch.setattr("apexrl.api._run", run)
    monkeypatch.chdir(tmp_path)
    return runs


# --- the choice


@pytest.mark.parametrize(
    ("action", "seen", "step", "cores", "found"),
    [
        ("discrete", "vector", FAST, 2, ("ppo", "impala")),
        ("discrete", "vector", SLOW, 2, ("dueling_dqn", "apex")),
        ("choices", "vector", None, 2, ("dueling_dqn", "apex")),
        ("box", "vector", FAST, 2, ("ppo", "impala")),
        ("box", "vector", SLOW, 64, ("sac", "apex")),
        ("discrete", "image", FAST, 64, ("ppo", "sample_factory")),
        ("discrete", "image", FAST, 2, ("ppo", "impala")),
        ("discrete", "categories", FAST, 2, ("dueling_dqn", "apex")),
        ("choices", "categories", FAST, 2, ("ppo", "impala")),
        ("choices", "categories", SLOW, 2, ("dueling_dqn", "apex")),
        ("box", "categories", FAST, 2, ("ppo", "impala")),
        ("discrete", "map", FAST, 2, ("ppo", "impala")),
    ],
)
def test_actions_speed_and_cores_decide(
    action: str, seen: str, step: float | None, cores: int, found: tuple[str, str]
) -> None:
    assert choose(facts(action, seen, step), cores, AUTO, "", ())[:2] == found


def test_the_choice_says_that_observations_are_categories() -> None:
    assert "observations of categories alone" in choose(facts(seen="categories"), 2, AUTO, "", ()).why
    assert "categories" not in choose(facts(), 2, AUTO, "", ()).why


def test_what_is_given_is_read_by_what_is_chosen() -> None:
    fast = facts(step=FAST)
    assert choose(fast, 2, AUTO, "", ["min_size"])[:2] == ("dueling_dqn", "apex")
    assert "ppo in impala would not read --min-size" in choose(fast, 2, AUTO, "", ["min_size"]).why
    assert choose(facts(), 2, AUTO, "", ["unroll_length"])[:2] == ("ppo", "impala")
    assert choose(fast, 2, AUTO, "", ["policy_workers"])[:2] == ("ppo", "sample_factory")
    assert choose(facts(), 2, "bc", "", ["actors"])[:2] == ("bc", "offline")  # which refuses them
    assert choose(facts("box"), 2, AUTO, "", ["target_noise"])[:2] == ("td3", "apex")


def test_a_run_on_other_machines_gets_a_topology_for_them() -> None:
    many = facts(seen="image", step=FAST)
    assert choose(many, 64, AUTO, "", ["redis"])[:2] == ("ppo", "impala")
    assert choose(many, 64, AUTO, "", ["ray", "learners"])[:2] == ("ppo", "impala")
    assert choose(facts(), 2, AUTO, "", ["listen"])[:2] == ("dueling_dqn", "seed")


def test_a_name_that_is_given_stays() -> None:
    for topology, about in topologies.TOPOLOGIES.items():
        assert choose(facts(), 2, AUTO, topology, ())[:2] == (about.agent, topology)
    assert choose(facts("box"), 2, AUTO, "apex", ()).agent == "sac"
    assert choose(facts("box"), 2, AUTO, "gorila", ()).agent == "sac"
    assert choose(facts(), 2, "a2c", "", ())[:2] == ("a2c", "impala")
    assert choose(facts(), 2, "r2d2", "", ())[:2] == ("r2d2", "apex")
    with pytest.raises(ConfigError, match="topology impala cannot run agent dqn"):
        validate(unseen.with_recipe("dqn", choose(facts(), 2, "dqn", "impala", ()).topology, facts(), "default"))


def test_a_choice_says_for_which_actions() -> None:
    assert choose(facts("box"), 2, AUTO, "", ()).why.startswith("actions of 3 numbers, a step ")


def test_step_sizes_fall_unless_hosts_may_bring_learners(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("apexrl.launch.env_look.env_facts", lambda *_, **__: facts("box"))
    look = override(Config(), {"env_steps": 10**6})
    found = {given: unseen.start(look, "ppo", "", "default", given).config for given in ((), ("redis",))}
    assert [config.agent.anneal for config in found.values()] == [True, False]


# --- what is given wins


def test_the_command_chooses_says_why_and_records(started: list[Config], capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([], ["--agent", "auto"], ["--agent=auto"]):
        assert main.main(["train", "--env", "Any-v0", *words]) == 0
        assert "--agent auto: dueling_dqn in topology apex, for 4 discrete actions" in capsys.readouterr().err
    config = convert.from_toml(convert.to_toml(started[0]))
    assert started[0] == started[1] == started[2] == config
    assert (config.agent.agent, config.topology, config.recipe) == ("dueling_dqn", "apex", "default")
    table = default_settings.default_settings("dueling_dqn", "apex", facts())
    assert {name: flat(config)[name] for name in table} == table
    assert main.main(["train", "--env", "Any-v0", "--agent", "dqn"]) == 0
    assert "auto" not in capsys.readouterr().err


def test_flags_and_keywords_win_over_the_defaults(started: list[Config], looked: list[Config]) -> None:
    words = ["--stack", "2", "--agent", "qr_dqn", "--learning-rate", "0.5", "--no-random-start", "--hidden", "7"]
    assert main.main(["train", "--env", "Any-v0", "--env-kwargs", "a", "1", *words]) == 0
    given = {"stack": 2, "agent": "qr_dqn", "learning_rate": 0.5, "random_start": False, "hidden": (7,)}
    apexrl.train(env="Any-v0", env_kwargs={"a": 1}, show=False, **given)
    assert started[0] == started[1]
    values = flat(started[0])
    assert {name: values[name] for name in given} == given
    assert values["batch_size"] == default_settings.default_settings("qr_dqn", "apex", facts())["batch_size"]
    assert [(look.env.env, look.env.stack, look.env.env_kwargs) for look in looked] == [("Any-v0", 2, {"a": 1})] * 2


def test_the_environment_is_looked_at_as_the_run_makes_it(started: list[Config], looked: list[Config]) -> None:
    words = ["--mask-in-info", "--max-sequence-length", "9", "--cut-long-sequences"]
    assert main.main(["train", "--env", "Any-v0", "--agent", "dqn", *words]) == 0
    given: dict[str, Any] = {"mask_in_info": True, "max_sequence_length": 9, "cut_long_sequences": True}
    apexrl.train(env="Any-v0", agent="dqn", show=False, **given)
    for look in looked:
        assert (look.env.mask_in_info, look.env.max_sequence_length, look.env.cut_long_sequences) == (True, 9, True)
    assert len(looked) == 2


def test_a_topology_brings_its_agent_with_that_ones_settings(started: list[Config]) -> None:
    assert main.main(["train", "--env", "Any-v0", "--topology", "ga3c"]) == 0
    apexrl.train(env="Any-v0", topology="ga3c", show=False)
    assert started[0] == started[1]
    assert (started[0].agent.agent, started[0].agent.summed_loss, started[0].wiring.training_min_batch) == (
        "a2c",
        False,
        16,
    )


def test_the_papers_recipe_is_asked_for(started: list[Config]) -> None:
    assert main.main(["train", "--env", "Any-v0", "--agent", "dqn", "--recipe", "paper"]) == 0
    apexrl.train(env="Any-v0", agent="dqn", recipe="paper", show=False)
    assert started[0] == started[1]
    assert (started[0].recipe, started[0].learner.batch_size, started[0].agent.optimizer) == ("paper", 32, "rmsprop")
    assert main.main(["train", "--env", "Any-v0", "--agent", "dqn", "--recipe", "none"]) == 0
    assert started[2] == override(agents.with_agent(Config(), "dqn"), {"env": "Any-v0"})


def test_a_file_is_taken_as_it_is_and_another_name_leaves_nothing_of_the_first(started: list[Config]) -> None:
    assert main.main(["train", "--env", "CartPole-v1", "--agent", "dqn", "--learning-rate", "0.5"]) == 0
    Path("one.toml").write_text(convert.to_toml(override(started[0], {"batch_size": 11})))
    assert main.main(["train", "one.toml"]) == 0
    assert started[1] == override(started[0], {"batch_size": 11})
    assert main.main(["train", "one.toml", "--agent", "qr_dqn"]) == 0
    other = unseen.with_recipe("qr_dqn", "apex", facts(), "default")
    assert started[2] == override(other, {"env": "CartPole-v1", "learning_rate": 0.5, "batch_size": 11})
    apexrl.train(started[1], agent="qr_dqn", show=False)
    assert started[3] == started[2]


def test_a_files_environment_is_looked_at_only_if_it_is_trusted(
    started: list[Config], looked: list[Config], capsys: pytest.CaptureFixture[str]
) -> None:
    recorded = override(unseen.with_recipe("dqn", "apex", facts(), "default"), {"env": "nobody_has_this:X-v0"})
    Path("one.toml").write_text(convert.to_toml(recorded))
    assert main.main(["train", "one.toml", "--agent", "qr_dqn"]) == main.USAGE
    assert "--trust nobody_has_this" in capsys.readouterr().err
    assert not looked
    assert main.main(["train", "one.toml", "--agent", "qr_dqn", "--trust", "nobody_has_this"]) == 0
    assert started[0].agent.distribution == "quantile"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["cartpole", "--recipe", "paper"], "--recipe is for a run without a preset"),
        (["cartpole", "--agent", "auto"], "agent auto is for a run without a preset"),
        (["--env", "Any-v0", "--recipe", "papers"], "recipe = 'papers'"),
        (["--env", "Any-v0", "--agent", "my.own:Agent", "--recipe", "paper"], "nothing is known of a paper"),
        (["--env", "Any-v0", "--agent", "dqm"], "did you mean 'dqn'"),
        (["--env", "Any-v0", "--agent", "dqn", "--unroll-length", "3"], "--unroll-length means nothing to agent dqn"),
        (["--env", "Any-v0", "--topology", "impal"], "did you mean 'impala'"),
        (["--env", "Any-v0", "--topology", "impala", "--agent", "dqn"], "topology impala cannot run agent dqn"),
        (["--env", "Any-v0", "--stack", "0"], "--stack must be at least 1"),
    ],
)
def test_what_makes_no_sense_is_told(
    words: list[str], message: str, started: list[Config], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["train", *words]) == main.USAGE
    assert message in " ".join(capsys.readouterr().err.split())
    assert not started


def _boxes(low: float, high: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Environments have such bounds of their two actions."""
    action = ActionSpec((2,), "float32", low=np.full(2, low, np.float32), high=np.full(2, high, np.float32))
    seen = facts()._replace(spec=replace(facts().spec, action=action))
    monkeypatch.setattr("apexrl.launch.env_look.env_facts", lambda config, measure: seen)


@pytest.mark.parametrize("words", [(), ("--agent", "auto"), ("--topology", "sample_factory")])
def test_actions_without_bounds_go_to_an_agent_that_needs_none(
    words: tuple[str, ...], started: list[Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    _boxes(-np.inf, np.inf, monkeypatch)
    assert main.main(["train", "--env", "Any-v0", *words]) == 0
    assert started[0].agent.agent == ("appo" if "--topology" in words else "ppo")


@pytest.mark.parametrize(
    ("words", "bounds", "error"),
    [
        (("--topology", "apex"), (-np.inf, np.inf), "topology apex needs finite bounds"),
        ((), (1.0, 1.0), "every agent: every action needs low < high"),
    ],
)
def test_bounds_that_no_agent_takes_are_refused_before_one_is_chosen(
    words: tuple[str, ...],
    bounds: tuple[float, float],
    error: str,
    started: list[Config],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    _boxes(*bounds, monkeypatch)
    assert main.main(["train", "--env", "Any-v0", *words]) != 0
    told = capsys.readouterr()
    assert error in " ".join(told.err.split())
    assert "--agent auto:" not in told.out + told.err
    assert not started


def test_python_refuses_a_recipe_beside_a_config(started: list[Config]) -> None:
    for config in (Config(), "cartpole"):
        with pytest.raises(ConfigError, match="recipe= is for a run without a preset or a Config"):
            apexrl.train(config, recipe="paper", show=False)
    with pytest.raises(ConfigError, match="recipe = 'papers'"):
        apexrl.train(env="Any-v0", recipe="papers", show=False)


def test_arms_of_a_comparison_have_their_recipes(looked: list[Config]) -> None:
    plan = compare.plan("Any-v0", ["apex", "impala"], seeds=1, minutes=1.0, recipe="paper")
    assert [(arm.agent, arm.config.recipe) for arm in plan.arms] == [("dueling_dqn", "paper"), ("impala", "paper")]
    assert plan.arms[0].config.agent.optimizer == "rmsprop"
    assert "recipe paper" in terms(plan)


def test_a_runs_first_line_and_its_summary_say_the_recipe() -> None:
    config = unseen.with_recipe("dqn", "apex", facts(), "paper")
    assert "recipe paper" in title(config)
    assert "recipe" not in title(Config())
    assert make_summary(config, RunStatus(), stopped_by="env_steps")["recipe"] == "paper"


def test_a_resumed_run_keeps_its_recorded_values(started: list[Config]) -> None:
    recorded = override(unseen.with_recipe("dqn", "apex", facts(), "default"), {"batch_size": 3, "gamma": 0.5})
    Path("run").mkdir()
    Path("run/config.toml").write_text(convert.to_toml(recorded))
    assert main.main(["resume", "run", "--env-steps", "9"]) == 0
    assert started == [override(recorded, {"env_steps": 9})]


def test_nothing_that_an_agent_does_not_read_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["list", "c51"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    default, _, paper = text.partition("without a preset, for vectors")[2].partition("with --recipe paper")
    assert "--learning-rate 0.0005" in default
    assert "--learning-rate 0.00025" in paper.partition(" reads ")[0]
    assert "--huber" not in default
    assert "huber" in unread("c51")


@pytest.mark.parametrize("action", ["box", "discrete"])
def test_a_memory_leaves_ppo_its_steps_and_its_minibatches(action: str) -> None:
    plain, remembers = (
        default_settings.default_settings("ppo", "impala", facts(action), memory=memory) for memory in (False, True)
    )
    assert remembers["minibatches"] == plain["minibatches"]
    assert remembers["batch_size"] >= 4 * remembers["minibatches"]  # each of several whole unrolls
    steps = [found["unroll_length"] * found["batch_size"] for found in (plain, remembers)]
    assert steps[0] == steps[1]
    plain, remembers = (
        default_settings.default_settings("ppo", "impala", facts(action, "image"), memory=memory)
        for memory in (False, True)
    )
    assert remembers["unroll_length"] == plain["unroll_length"]


def test_who_plays_atari_hears_of_its_pipeline() -> None:
    look = override(Config(), {"env": "ALE/Pong-v5", "serial": True})
    assert (
        "papers play Atari's games with --atari --stack 4 --reward-clip 1" in unseen.start(look, "dqn", "", "none").said
    )
    assert "papers" not in unseen.start(look, "dqn", "", "none", ["atari"]).said
