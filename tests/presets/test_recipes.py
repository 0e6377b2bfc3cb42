"""What recipes set: defaults by facts of the environment, and the numbers of papers."""

from __future__ import annotations

import inspect
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from env_kinds import ACTIONS, OBSERVATIONS, acting_on, facts

from apexrl import topologies
from apexrl.agents import AGENTS, default_box_settings, default_settings, default_unroll_settings, unread, with_agent
from apexrl.agents.env_facts import EnvFacts
from apexrl.agents.paper_settings import paper_settings
from apexrl.config import Config
from apexrl.config.convert import flat, known_settings, override
from apexrl.presets import unseen
from apexrl.spec import PRESENT, TEAM, ActionSpec, EnvSpec, Field
from apexrl.topologies.validation import validate

KINDS = ("none", "gru")


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
    parts = default_settings, default_box_settings, default_unroll_settings
    named = {name: value for part in parts for name, value in vars(part).items() if name.isupper()}
    del named["AGENTS"], named["_SIZES"]  # of tables that have names
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
        "learners",
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


@pytest.mark.parametrize("agent", AGENTS)
def test_codes_are_divided_by_what_they_reach(agent: str) -> None:
    topology = unseen.default_topology(agent)

    def maximum(side: int, largest: int, recipe: unseen.Recipe = "default") -> float:
        shape = (side, side, 3) if side else (5,)
        spec = EnvSpec({"observation": Field(shape, "uint8")}, unseen.assumed_facts(agent).spec.action)
        return unseen.with_recipe(agent, topology, EnvFacts(spec, 200, None, largest), recipe).agent.byte_maximum

    assert [maximum(7, largest) for largest in (0, 1, 5, 8, 9, 64, 65, 255)] == [255, 1, 8, 8, 16, 64, 255, 255]
    assert maximum(0, 5) == 8
    assert maximum(84, 8) == maximum(7, 8, "paper") == 255


def test_policies_that_nothing_clips_stay_uncertain_for_longer_on_small_images() -> None:
    def entropy(agent: str, action: str, seen: str) -> float:
        return float(default_settings.default_settings(agent, "impala", facts(action, seen))["entropy_coefficient"])

    for agent in ("a2c", "impala"):
        assert entropy(agent, "discrete", "small image") > entropy(agent, "discrete", "image")
        assert entropy(agent, "discrete", "image") == entropy(agent, "discrete", "vector")
        assert entropy(agent, "box", "small image") == 0.0
    assert entropy("ppo", "discrete", "small image") == entropy("ppo", "discrete", "image")


@pytest.mark.parametrize("topology", [name for name in topologies.TOPOLOGIES if topologies.runs(name, "ppo")])
def test_step_sizes_of_long_runs_with_boxes_fall_where_they_may(topology: str) -> None:
    def falls(agent: str, kind: str, env_steps: int, learners: int = 1, memory: str = "none") -> bool:
        found = unseen.with_recipe(agent, topology, facts(kind), "default", env_steps, memory, learners)
        if found.agent.anneal:
            validate(override(found, {"env_steps": env_steps}))
        return found.agent.anneal

    assert falls("ppo", "box", 500_000) == (topology != "a3c")
    others = [("ppo", "box", 499_999), ("ppo", "box", 0), ("ppo", "discrete", 10**6), ("appo", "box", 10**6)]
    assert not any(falls(*one) for one in others)
    assert not falls("ppo", "box", 10**6, learners=2)
    assert not falls("ppo", "box", 10**6, memory="gru")


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


@pytest.mark.parametrize("agent", ["a2c", "impala", "ppo", "appo"])
def test_first_actions_of_several_joints_are_smaller_and_so_are_ppos_steps(agent: str) -> None:
    def found(joints: int, seen: str = "vector", topology: str = "impala") -> tuple[Any, Any]:
        bound = np.ones(joints, np.float32)
        action = ActionSpec((joints,), "float32", low=-bound, high=bound)
        known = EnvFacts(EnvSpec(OBSERVATIONS[seen], action))
        values = default_settings.default_settings(agent, topology, known)
        return values.get("initial_std", 1.0), values["learning_rate"]

    (_, few), (_, several) = found(2), found(3)
    assert [found(joints)[0] for joints in (1, 2, 3, 17)] == [1.0, 1.0, 0.35, 0.35]
    assert several == (few / 2 if agent == "ppo" else few)
    assert found(6, topology="ga3c") == (0.35, several)
    assert found(3, "image")[0] == 1.0
    assert paper_settings(agent, facts("box"), 1).get("initial_std", 1.0) == 1.0


@pytest.mark.parametrize("agent", ["a2c", "impala", "ppo", "appo"])
def test_a_policys_deviation_does_not_vanish_in_boxes(agent: str) -> None:
    found = default_settings.default_settings(agent, "impala", facts("box"))
    assert 0.0 < found["least_std"] < found["initial_std"]
    assert "least_std" not in default_settings.default_settings(agent, "impala", facts())
    assert "least_std" not in paper_settings(agent, facts("box"), 1)


def test_policies_of_several_joints_are_explored_with_independent_noise_where_ratios_are_clipped() -> None:
    for agent in ("a2c", "impala", "ppo", "appo"):
        found = default_settings.default_settings(agent, "impala", facts("box"))
        assert found["pink_noise"] == (agent in ("a2c", "impala"))
        assert default_settings.default_settings(agent, "impala", facts())["pink_noise"]


def test_a2c_learns_from_fewer_steps_at_a_time_in_boxes() -> None:
    steps = {}
    for kind in ("discrete", "box"):
        found = default_settings.default_settings("a2c", "a3c", facts(kind))
        steps[kind] = found["unroll_length"] * found["batch_size"]
        assert found["batch_size"] == found["envs_per_actor"]
    assert steps == {"discrete": 128, "box": 32}
    in_ga3c = default_settings.default_settings("a2c", "ga3c", facts("box"))
    assert in_ga3c["batch_size"] == in_ga3c["training_min_batch"] == in_ga3c["actors"] * in_ga3c["envs_per_actor"]


def test_targets_follow_sooner_and_look_a_step_ahead_where_observations_are_categories() -> None:
    def found(agent: str, seen: str) -> tuple[int, int]:
        values = default_settings.default_settings(agent, "apex", facts(seen=seen))
        return values["target_period_updates"], values["n_step"]

    assert [found("dqn", seen) for seen in ("vector", "categories", "small image")] == [(500, 3), (100, 1), (1_000, 3)]
    assert found("munchausen_dqn", "categories") == (100, 1)


def test_ppo_and_appo_look_less_far_ahead_where_episodes_of_boxes_are_short() -> None:
    def found(limit: int | None, kind: str = "box", agent: str = "ppo", seen: str = "vector") -> tuple[int, int, float]:
        of = default_settings.default_settings(agent, "impala", facts(kind, seen)._replace(time_limit=limit))
        made = override(with_agent(Config(topology="impala"), agent), of).agent
        return made.unroll_length, made.epochs, made.gamma

    assert found(200) == (64, 10, 0.98)
    assert found(201) == found(None) == found(200, "discrete") == (128, 6, 0.99)
    assert found(200, seen="image") == found(None, seen="image")
    assert found(200, agent="appo") == (32, 10, 0.98)
    assert found(None, agent="appo") == (32, 2, 0.99)
    assert found(200, agent="a2c") == found(None, agent="a2c")


@pytest.mark.parametrize(("agent", "topology"), [("a2c", "a3c"), ("appo", "impala"), ("appo", "sample_factory")])
def test_begins_with_small_steps_in_boxes_of_vectors(agent: str, topology: str) -> None:
    found = {
        (kind, seen): default_settings.default_settings(agent, topology, facts(kind, seen))["optimizer"]
        for kind, seen in [("box", "vector"), ("box", "image"), ("discrete", "vector")]
    }
    assert found == {("box", "vector"): "radam", ("box", "image"): "adam", ("discrete", "vector"): "adam"}


@pytest.mark.parametrize(
    ("agent", "steps"),
    [("dqn", 10_000), ("c51", 10_000), ("bbf", 10_000), ("noisy_dqn", 0), ("rainbow", 0), ("qmix", 0)],
)
def test_epsilon_falls_from_one_where_nothing_else_explores_vectors(agent: str, steps: int) -> None:
    for env_steps, most in ((0, 10_000), (8_000, 2_000), (1_000_000, 10_000)):
        found = default_settings.default_settings(agent, "apex", facts(), env_steps=env_steps)
        assert found["exploration_steps"] == min(steps, most)


def test_rainbows_noise_goes_on_where_observations_are_vectors() -> None:
    assert default_settings.default_settings("rainbow", "apex", facts())["noise_period"] == 4
    assert "noise_period" not in default_settings.default_settings("rainbow", "apex", facts(seen="image"))


@pytest.mark.parametrize(("kind", "most"), [("discrete", math.log(4)), ("choices", math.log(6)), ("box", 0.0)])
def test_discrete_sac_keeps_half_of_the_greatest_entropy(kind: str, most: float) -> None:
    """Boxes, of which it says itself that they are not for it, have settings all the same."""
    found = default_settings.default_settings("discrete_sac", "apex", facts(kind))
    assert found["target_entropy"] == pytest.approx(0.5 * most)


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
