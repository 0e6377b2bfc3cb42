"""What a run without a preset starts from: recipes, ``--agent auto``, and that whatever is given wins."""

from __future__ import annotations

import inspect
import math
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import apexrl
from apexrl import agents, compare, topologies
from apexrl.agents import AGENTS, default_box_settings, default_settings, unread
from apexrl.agents.env_facts import EnvFacts
from apexrl.agents.paper_settings import paper_settings
from apexrl.cli import main
from apexrl.compare.plan import terms
from apexrl.config import Config, convert
from apexrl.config.convert import flat, known_settings, override
from apexrl.errors import ConfigError
from apexrl.presets import unseen
from apexrl.presets.choice import AUTO, FAST_STEP_SECONDS, choose
from apexrl.report.plain_lines import title
from apexrl.run.folder import make_summary
from apexrl.run.status import RunStatus
from apexrl.spec import PRESENT, TEAM, ActionSpec, EnvSpec, Field
from apexrl.topologies.validation import validate

ONES = np.ones(3, np.float32)
KINDS = ("none", "gru")
ACTIONS = {
    "discrete": ActionSpec(n=4),
    "choices": ActionSpec((2,), nvec=(3, 2)),
    "box": ActionSpec((3,), "float32", low=-ONES, high=ONES),
}
OBSERVATIONS = {
    "vector": {"observation": Field((8,), "float32")},
    "small image": {"observation": Field((10, 10, 4), "bool")},
    "image": {"observation": Field((84, 84), "uint8")},
    "categories": {"observation": Field((), "int64")},
    "map": {"observation": Field((8, 8), "int64")},
    "dict": {"observation/camera": Field((64, 64, 3), "uint8"), "observation/speed": Field((2,), "float32")},
}
FAST, SLOW = FAST_STEP_SECONDS / 2, FAST_STEP_SECONDS * 2


def facts(action: str = "discrete", seen: str = "vector", step: float | None = SLOW) -> EnvFacts:
    categories = {"observation": 16} if seen in ("categories", "map") else {}
    return EnvFacts(EnvSpec(OBSERVATIONS[seen], ACTIONS[action], categories=categories), 200, step)


def acting_on(action: str) -> list[str]:
    return [name for name, info in AGENTS.items() if ("Box" if action == "box" else "Discrete") in info.needs]


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


# --- recipes


@pytest.mark.parametrize("recipe", ["default", "paper"])
@pytest.mark.parametrize("seen", OBSERVATIONS)
@pytest.mark.parametrize("action", ACTIONS)
def test_every_recipe_is_a_run_in_every_topology_of_its_agent(action: str, seen: str, recipe: unseen.Recipe) -> None:
    for agent in acting_on(action):
        for topology in topologies.TOPOLOGIES:
            if topologies.runs(topology, agent):
                config = unseen.with_recipe(agent, topology, facts(action, seen), recipe)
                limits = {"updates": 1000, "dataset": "some"} if topology == "offline" else {"env_steps": 1000}
                if not topologies.obstacle(config):
                    validate(override(config, limits))
                assert (config.agent.agent, config.topology, config.recipe) == (agent, topology, recipe)


@pytest.mark.parametrize("seen", ["vector", "image"])
@pytest.mark.parametrize("action", ACTIONS)
def test_with_a_memory_defaults_count_sequences(action: str, seen: str) -> None:
    for agent in acting_on(action):
        if "memory" in unread(agent) or AGENTS[agent].offline:
            continue
        topology = unseen.default_topology(agent)
        plain, memory = (unseen.with_recipe(agent, topology, facts(action, seen), "default", 0, kind) for kind in KINDS)
        validate(override(memory, {"env_steps": 1000, "memory": "gru"}))
        assert memory.agent.memory == "none"  # the recipe sets it no more than any other that is given
        if AGENTS[agent].item == "transition":
            each = memory.agent.sequence_length * memory.learner.batch_size * memory.replay.updates_per_step
            assert each == pytest.approx(plain.learner.batch_size * plain.replay.updates_per_step)
            assert memory.replay.min_size < plain.replay.min_size


def tables(values: dict[str, Any]) -> list[dict[str, Any]]:
    """The tables of settings among ``values``, and those inside tables of agents."""
    found = []
    for table in (value for value in values.values() if isinstance(value, dict) and value):
        found += tables(table) if all(isinstance(inner, dict) for inner in table.values()) else [table]
    return found


def test_tables_name_settings_that_there_are() -> None:
    parts = default_settings, default_box_settings
    named = {name: value for part in parts for name, value in vars(part).items() if name.isupper()}
    del named["AGENTS"]
    assert len(tables(named)) > 30
    for table in tables(named):
        assert table.keys() <= known_settings().keys()


def test_the_last_reset_comes_well_before_the_end() -> None:
    (found, unknown) = (unseen.with_recipe("bbf", "apex", facts(), "default", steps).agent for steps in (121_000, 0))
    assert found.reset_until_updates == 96_800
    assert unknown.reset_until_updates == 0


def test_defaults_depend_on_facts_and_on_no_name() -> None:
    assert list(inspect.signature(default_settings.default_settings).parameters) == [
        "agent",
        "topology",
        "facts",
        "memory",
        "env_steps",
    ]
    small, large = (
        default_settings.default_settings("dqn", "apex", facts(seen=seen)) for seen in ("small image", "image")
    )
    assert small["image_units"] < large["image_units"]
    giant = EnvFacts(EnvSpec({"observation": Field((1024, 1024, 3), "uint8")}, ACTIONS["discrete"]))
    kept = default_settings.default_settings("dqn", "apex", giant)
    assert kept["min_size"] < kept["capacity"] < large["capacity"]
    assert kept["capacity"] * giant.observation_nbytes <= 2 << 30
    assert default_settings.default_settings("ppo", "impala", facts("box"))["entropy_coefficient"] == 0.0


def test_images_change_step_sizes_but_not_what_is_done_to_vectors_beside_them() -> None:
    for agent in ("dqn", "c51", "qr_dqn", "iqn", "rainbow"):
        image, both = (
            flat(unseen.with_recipe(agent, "apex", facts(seen=seen), "default")) for seen in ("image", "dict")
        )
        assert image["learning_rate"] == 1e-4
        assert both["normalize_observations"]
    for agent in ("sac", "d4pg"):
        assert default_settings.default_settings(agent, "apex", facts("box", "image"))["learning_rate"] == 3e-4


ATARI = {"batch_size": 32, "n_step": 1, "alpha": 0.0, "capacity": 1_000_000, "min_size": 50_000, "gamma": 0.99,
         "updates_per_step": 0.25, "target_period_updates": 2_500, "image_units": 512, "hidden": (512,)}  # fmt: skip
CATEGORIES = {"atoms": 51, "v_min": -10.0, "v_max": 10.0}
PAPERS: dict[str, dict[str, Any]] = {
    "dqn": ATARI
    | {"optimizer": "rmsprop", "centered": True, "learning_rate": 2.5e-4, "rmsprop_decay": 0.95,
       "optimizer_eps": 0.01 / 1024, "huber": 1.0, "epsilon": 0.1, "exploration_steps": 1_000_000,
       "double": False, "dueling": False},
    "c51": ATARI
    | {"optimizer": "adam", "learning_rate": 2.5e-4, "optimizer_eps": 0.01 / 32, "epsilon": 0.01, **CATEGORIES},
    "qr_dqn": ATARI
    | {"optimizer": "adam", "learning_rate": 5e-5, "optimizer_eps": 0.01 / 32, "quantiles": 200, "huber": 1.0},
    "iqn": ATARI
    | {"optimizer": "adam", "learning_rate": 5e-5, "optimizer_eps": 0.01 / 32, "quantile_samples": 64, "cosines": 64},
    "rainbow": ATARI
    | {"optimizer": "adam", "learning_rate": 6.25e-5, "optimizer_eps": 1.5e-4, "n_step": 3, "alpha": 0.5, "beta": 0.4,
       "beta_end": 1.0, "exploration_steps": 0,
       "min_size": 20_000, "target_period_updates": 2_000, "noisy_sigma": 0.5, "epsilon": 0.0, **CATEGORIES},
    "bbf": {"optimizer": "adamw", "weight_decay": 0.1, "learning_rate": 1e-4, "optimizer_eps": 1.5e-4, "n_step": 3,
            "n_step_start": 10, "gamma": 0.997, "gamma_start": 0.97, "horizon_updates": 10_000, "polyak": 0.005,
            "reset_period_updates": 40_000, "shrink_factor": 0.5, "target_acts": True, "updates_per_step": 2.0,
            "encoder": "resnet", "encoder_width": 4, "image_units": 2_048, "batch_size": 32, "min_size": 2_000,
            "capacity": 200_000, "epsilon": 0.0, "alpha": 0.5, "beta": 0.5, **CATEGORIES},
    "dueling_dqn": {"optimizer": "rmsprop", "learning_rate": 6.25e-5, "optimizer_eps": 1.5e-7, "gradient_clip": 40.0,
                    "batch_size": 512, "n_step": 3, "alpha": 0.6, "beta": 0.4, "epsilon": 0.4, "epsilon_alpha": 7.0},
    "td3": {"hidden": (400, 300), "learning_rate": 1e-3, "batch_size": 100, "sigma": 0.1, "polyak": 0.005},
    "discrete_sac": {"learning_rate": 3e-4, "batch_size": 64, "updates_per_step": 0.25, "min_size": 20_000,
                     "polyak": 0.0, "target_period_updates": 2_000,
                     "target_entropy": pytest.approx(0.98 * math.log(4))},
    "pqn": {"unroll_length": 32, "batch_size": 128, "envs_per_actor": 128, "epochs": 2, "minibatches": 32,
            "optimizer": "radam", "learning_rate": 2.5e-4, "gradient_clip": 10.0, "trace_lambda": 0.65,
            "epsilon": 0.001, "exploration_steps": 100_000, "anneal": False, "image_units": 512},
    "ppo": {"unroll_length": 128, "batch_size": 8, "epochs": 4, "minibatches": 4, "clip_ratio": 0.1},
    "impala": {"unroll_length": 20, "batch_size": 32, "learning_rate": 6e-4, "optimizer_eps": 0.01, "anneal": True},
}  # fmt: skip


@pytest.mark.parametrize("agent", PAPERS)
def test_a_papers_recipe_has_its_numbers(agent: str) -> None:
    """Sources: Mnih et al. 2015 and the like, and dqn_zoo, where it says more."""
    kind = "box" if agent == "td3" else "discrete"
    config = unseen.with_recipe(agent, unseen.default_topology(agent), facts(kind, "image"), "paper", 10**6)
    values = flat(config)
    assert {name: values[name] for name in PAPERS[agent]} == PAPERS[agent]


def test_pqns_paper_has_other_numbers_for_small_images_and_vectors() -> None:
    """purejaxql's pqn_minatar.yaml and pqn_cartpole.yaml; ε falls over a share of the run, as the step size does."""
    small, vector = (paper_settings("pqn", facts(seen=seen), 500_000) for seen in ("small image", "vector"))
    assert (small["learning_rate"], small["epsilon"], small["exploration_steps"]) == (5e-4, 0.05, 50_000)
    assert (vector["learning_rate"], vector["epsilon"], vector["exploration_steps"]) == (1e-4, 0.2, 100_000)
    assert (vector["trace_lambda"], vector["reward_scale"], vector["hidden"]) == (0.95, 0.1, (256, 256))
    assert small["anneal"]
    assert vector["anneal"]
    assert "anneal" not in paper_settings("pqn", facts(seen="small image"))


def test_what_changes_until_the_end_needs_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("apexrl.launch.env_look.env_facts", lambda *_, **__: facts())
    for steps, said in ((0, "--recipe paper leaves out --beta-end 1, which needs --env-steps"), (9, "")):
        found = unseen.start(override(Config(), {"env_steps": steps}), "rainbow", "", "paper")
        assert (found.said, found.config.agent.beta_end) == (said, 1.0 if steps else 0.0)


def test_step_sizes_fall_only_where_the_end_is_known() -> None:
    assert "anneal" not in paper_settings("impala", facts())
    assert paper_settings("ppo", facts("box"), 1)["unroll_length"] == 2048
    assert paper_settings("impala", facts(seen="image"))["encoder"] == "shallow"
    assert "encoder" not in paper_settings("impala", facts(seen="small image"))
    assert paper_settings("ppo", facts("box"), 1)["anneal"]


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
        ("box", "categories", FAST, 2, ("ppo", "impala")),
        ("discrete", "map", FAST, 2, ("ppo", "impala")),
    ],
)
def test_actions_speed_and_cores_decide(
    action: str, seen: str, step: float | None, cores: int, found: tuple[str, str]
) -> None:
    assert choose(facts(action, seen, step), cores, AUTO, "", ())[:2] == found


def test_the_choice_says_that_observations_are_categories() -> None:
    assert "observations are categories" in choose(facts(seen="categories"), 2, AUTO, "", ()).why
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


def test_a2c_learns_from_fewer_steps_at_a_time_in_boxes() -> None:
    steps = {}
    for kind in ("discrete", "box"):
        found = default_settings.default_settings("a2c", "a3c", facts(kind))
        steps[kind] = found["unroll_length"] * found["batch_size"]
        assert found["batch_size"] == found["envs_per_actor"]
    assert steps == {"discrete": 128, "box": 32}
    in_ga3c = default_settings.default_settings("a2c", "ga3c", facts("box"))
    assert in_ga3c["batch_size"] == in_ga3c["training_min_batch"] == in_ga3c["actors"] * in_ga3c["envs_per_actor"]


@pytest.mark.parametrize(("limit", "gamma"), [(None, 0.99), (25, 0.96), (125, 0.99)])
def test_values_of_several_agents_look_no_farther_than_an_episode(limit: int | None, gamma: float) -> None:
    spec = replace(facts().spec, agents=("first", "second"))
    team = {TEAM: Field((2, 4), "float32"), PRESENT: Field((2,), "int8")}
    for agent, seen in (("ppo", spec), ("dqn", spec), ("qmix", EnvSpec(team, ActionSpec(shape=(2,), nvec=(2, 2))))):
        found = default_settings.default_settings(agent, "apex", EnvFacts(seen, limit))
        assert found["gamma"] == pytest.approx(gamma)
    alone = default_settings.default_settings("ppo", "impala", facts()._replace(time_limit=limit))
    assert alone["gamma"] == 0.99
    assert default_settings.default_settings("bbf", "apex", EnvFacts(spec, limit))["gamma"] == 0.99, "it has a schedule"


@pytest.mark.parametrize(("limit", "gamma"), [(None, 0.99), (500, 0.99), (1_000, 0.995)])
def test_long_episodes_of_discrete_actions_are_discounted_less(limit: int | None, gamma: float) -> None:
    for agent in ("a2c", "impala", "ppo", "appo"):
        found = default_settings.default_settings(agent, "impala", facts()._replace(time_limit=limit))
        assert found["gamma"] == gamma
        box = default_settings.default_settings(agent, "impala", facts("box")._replace(time_limit=limit))
        assert box["gamma"] == 0.99
