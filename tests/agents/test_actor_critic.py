from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from actor_critic_reference import (
    CARTPOLE,
    ENVS,
    LENGTH,
    PENDULUM,
    POSITIONS,
    ByHand,
    agent_for,
    config_of,
    played,
    some,
    spec_of,
    with_data,
)

from apexrl.agents import unroll_updates
from apexrl.agents.actor_critic import ActorCritic, Aims
from apexrl.agents.optimizer import make_optimizer
from apexrl.config import EnvConfig
from apexrl.errors import AgentError, NonFiniteError
from apexrl.replay import Batch
from apexrl.spec import ActionSpec, EnvSpec, Field

FOUR = ("a2c", "impala", "ppo", "appo")
RECURRENT: dict[str, Any] = {"memory": "lstm"}
PLAYS: dict[str, tuple[EnvConfig, dict[str, Any]]] = {
    "choices": (CARTPOLE, {}),
    "a memory": (POSITIONS, RECURRENT),
    "numbers": (PENDULUM, {}),
    "numbers and a memory": (PENDULUM, RECURRENT),
}


@pytest.fixture(scope="module")
def plays() -> dict[str, Batch]:
    """What an agent of each kind recorded, all unrolls of 120 steps of 4 environments."""
    return {kind: played(agent_for("impala", env, **changes), env) for kind, (env, changes) in PLAYS.items()}


def learner(kind: str, name: str, **changes: Any) -> ActorCritic:
    """Another policy than the one that acted."""
    env, own = PLAYS[kind]
    return agent_for(name, env, seed=5, **own, **changes)


def floats(agent: ActorCritic) -> dict[str, bytes]:
    return {name: value.tobytes() for name, value in agent.state_dict().items()}


# Acting


def test_it_learns_from_unrolls_and_says_what_it_records() -> None:
    agent = agent_for("impala")
    assert agent.item == ("unroll", LENGTH, 0, 0)
    assert agent.step_spec == {"log_prob": Field((), "float32")}
    assert not hasattr(agent, "priorities")
    remembers = agent_for("ppo", PENDULUM, **RECURRENT)
    state = Field((7,), "float32", per_item=True)
    assert remembers.step_spec == {
        "log_prob": Field((), "float32"),
        "sample": Field((1,), "float32"),
        "lstm_h": state,
        "lstm_c": state,
    }


def test_its_policy_explores_and_exploration_does_not_matter() -> None:
    seen = {"observation": np.repeat(np.array([[0.3, -1.0, 0.2, 0.5]], np.float32), 500, axis=0)}
    one, two = agent_for("a2c"), agent_for("a2c")
    none, endless = np.zeros(500, np.float32), np.full(500, np.inf, np.float32)
    acted, wild = one.act(seen, None, none), two.act(seen, None, endless)
    np.testing.assert_array_equal(acted.actions, wild.actions)
    shares = np.bincount(acted.actions, minlength=2) / 500
    for action in (0, 1):
        probability = np.exp(acted.extras["log_prob"][acted.actions == action][0])
        assert abs(shares[action] - probability) < 0.07
    greedy = one.act(seen, None, endless, greedy=True)
    assert len(set(greedy.actions.tolist())) == 1
    np.testing.assert_allclose(greedy.extras["log_prob"], acted.extras["log_prob"].max(), rtol=1e-6)  # the likeliest


def test_at_first_all_choices_are_about_as_good() -> None:
    agent = ActorCritic(spec_of(CARTPOLE), config_of("ppo", hidden=(64, 64)))
    seen = {"observation": np.random.default_rng(0).normal(size=(200, 4)).astype(np.float32)}
    log_prob = agent.act(seen, None, np.zeros(200, np.float32)).extras["log_prob"]
    np.testing.assert_allclose(log_prob, np.log(0.5), atol=0.05)


@pytest.mark.parametrize(("initial", "least", "std"), [(1.0, 0.0, 1.0), (0.7, 0.1, 0.7), (0.01, 0.8, 0.8)])
def test_numbers_are_drawn_in_unit_range_and_clipped_for_the_environment(
    initial: float, least: float, std: float
) -> None:
    agent = ActorCritic(spec_of(PENDULUM), config_of("ppo", initial_std=initial, least_std=least))
    seen = {"observation": np.ones((4000, 3), np.float32)}
    acted = agent.act(seen, None, np.zeros(4000, np.float32))
    sample, actions = np.asarray(acted.extras["sample"], np.float64), np.asarray(acted.actions, np.float64)
    np.testing.assert_allclose(actions, np.clip(2.0 * sample, -2.0, 2.0), rtol=1e-6)
    assert (np.abs(sample) > 1.0).mean() > 0.1  # kept as drawn
    np.testing.assert_allclose([sample.mean(), sample.std()], [0.0, std], atol=0.05)
    density = -0.5 * ((sample[:, 0] - sample.mean()) / std) ** 2 - np.log(std) - 0.5 * np.log(2.0 * np.pi)
    np.testing.assert_allclose(np.asarray(acted.extras["log_prob"], np.float64), density, atol=0.1)
    greedy = agent.act(seen, None, np.zeros(4000, np.float32), greedy=True)
    assert np.ptp(greedy.actions) == 0.0
    assert abs(float(greedy.actions[0, 0])) < 0.2


def test_a_box_needs_no_bounds() -> None:
    low, high = np.array([-np.inf, -np.inf, 2.0, -1.0], np.float32), np.array([np.inf, 5.0, 3.4e38, 3.0], np.float32)
    spec = EnvSpec({"observation": Field((3,), "float32")}, ActionSpec((4,), "float32", low=low, high=high))
    seen = {"observation": np.ones((4000, 3), np.float32)}
    acted = ActorCritic(spec, config_of("ppo")).act(seen, None, np.zeros(4000, np.float32))
    sample, actions = np.asarray(acted.extras["sample"]), np.asarray(acted.actions)
    expected = np.clip(np.array([0.0, 4.0, 3.0, 1.0]) + np.array([1.0, 1.0, 1.0, 2.0]) * sample, low, high)
    np.testing.assert_allclose(actions, expected, rtol=1e-6)
    assert (np.abs(actions[:, 0]) > 1.0).any()
    assert (actions[:, 1] == 5.0).any()  # beyond its only bound


def test_what_it_cannot_do_is_refused() -> None:
    with pytest.raises(AgentError, match="ppo: every action needs low < high"):
        empty = ActionSpec((1,), "float32", low=np.ones(1, np.float32), high=np.ones(1, np.float32))
        ActorCritic(EnvSpec({"observation": Field((2,), "float32")}, empty), config_of("ppo"))
    with pytest.raises(AgentError, match=r"value_clip 0.2 holds values .* set epochs or minibatches above 1"):
        ActorCritic(spec_of(CARTPOLE), config_of("ppo", value_clip=0.2))
    for steps in ({"epochs": 2}, {"minibatches": 3}):
        with pytest.raises(AgentError, match=r"--surrogate log_prob with .* Set --epochs 1 --minibatches 1"):
            ActorCritic(spec_of(CARTPOLE), config_of("impala", **steps))
    for setting in ("unroll_length", "epochs", "minibatches", "recurrent_units"):
        with pytest.raises(AgentError, match=f"{setting} 0"):
            ActorCritic(spec_of(CARTPOLE), config_of("ppo", **{setting: 0}))


# What the learner sees of it


@pytest.mark.parametrize("kind", PLAYS)
def test_while_the_weights_are_those_that_acted_nothing_needs_correction(kind: str, plays: dict[str, Batch]) -> None:
    """From the state at an unroll's start, through the ends of episodes, to what the actor said step by step."""
    env, changes = PLAYS[kind]
    batch = plays[kind]
    mask, first = batch.data["mask"], batch.data["first"]
    assert first[:, 1:].any()
    assert (~mask[:, 0]).any()  # some unrolls begin with a final observation
    assert ((batch.data["discount"] == 0) & mask).any() == (env.env != "Pendulum-v1")
    agent = agent_for("impala", env, **changes)
    now = agent._evaluate(agent.prepare(batch))
    np.testing.assert_allclose(now.log_prob.detach().t()[mask], batch.data["log_prob"][mask], rtol=1e-3, atol=1e-4)
    assert np.std(batch.data["log_prob"][mask]) > 0.05
    if changes:
        assert batch.data["lstm_c"][~first[:, 0]].any(axis=1).all()
        assert not batch.data["lstm_c"][first[:, 0]].any()


def test_metrics_say_how_far_the_policy_has_gone(plays: dict[str, Batch]) -> None:
    batch = plays["choices"]
    agent, other = agent_for("appo"), learner("choices", "appo")
    said, gone = (one.gradients(one.prepare(batch)).metrics for one in (agent, other))
    assert said.keys() >= {"loss", "value", "entropy", "kl", "clipped", "rho", "gradient_norm"}
    assert (abs(said["kl"]), said["clipped"], said["rho"]) == pytest.approx((0.0, 0.0, 1.0), abs=1e-3)
    assert 0.0 < said["entropy"] < np.log(2.0)
    assert gone["kl"] > 0.05
    assert gone["clipped"] > 0.3
    assert gone["rho"] < 0.95


# The rule


RULES: list[tuple[str, str, dict[str, Any]]] = [
    *(("choices", name, {}) for name in FOUR),
    ("choices", "impala", {"rho_clip": 2.0, "c_clip": 0.7, "gae_lambda": 0.8, "entropy_coefficient": 0.3}),
    ("choices", "a2c", {"gae_lambda": 0.8, "normalize_advantages": True, "summed_loss": False}),
    ("choices", "appo", {"summed_loss": True, "normalize_advantages": False, "value_coefficient": 2.0}),
    ("a memory", "impala", {}),
    ("numbers", "ppo", {"clip_ratio": 0.5}),
    ("choices", "ppo", {"separate_values": True, "value_coefficient": 2.0}),
    ("numbers and a memory", "appo", {}),
]


@pytest.mark.parametrize(("kind", "name", "changes"), RULES, ids=str)
def test_the_gradient_is_that_of_the_rule_written_out(
    kind: str, name: str, changes: dict[str, Any], plays: dict[str, Batch]
) -> None:
    batch = some(plays[kind], slice(10, 30))
    agent = learner(kind, name, gradient_clip=0.0, **changes)
    by_hand = ByHand(agent)
    aims = [by_hand.aims(batch.data, row) for row in range(20)]
    expected = by_hand.gradient(batch.data, aims)
    groups, priorities, metrics = agent.gradients(agent.prepare(batch))
    found = agent._network.parameters.split(groups["policy_value"])
    assert priorities is None
    assert found.keys() == expected.keys()
    largest = max(float(gradient.abs().max()) for gradient in expected.values())
    for key, gradient in expected.items():
        torch.testing.assert_close(found[key].double(), gradient, rtol=2e-3, atol=2e-4 * largest)
    with torch.no_grad():
        assert metrics["loss"] == pytest.approx(float(by_hand.loss(batch.data, aims)), rel=1e-3, abs=1e-4)


def test_one_pass_is_gradients_and_apply(plays: dict[str, Batch]) -> None:
    one, two = learner("choices", "impala"), learner("choices", "impala")
    for rows in (slice(0, 8), slice(8, 16)):
        batch = some(plays["choices"], rows)
        learned = one.update(one.prepare(batch))
        assert learned.priorities is None
        two.apply(two.gradients(two.prepare(batch)).groups)
    assert floats(one) == floats(two)
    assert one.updates == 2


@pytest.mark.parametrize("value_clip", [0.0, 0.02])
@pytest.mark.parametrize("kind", ["choices", "a memory"])
def test_an_update_of_several_steps_is_the_rule_in_order(kind: str, value_clip: float, plays: dict[str, Batch]) -> None:
    """Targets and advantages from before the first gradient step; each is on its share of the environment's steps, with
    a memory of the unrolls, once an epoch."""
    batch = some(plays[kind], slice(10, 23))
    mask = batch.data["mask"]
    assert not mask.all()
    agent = learner(kind, "ppo", epochs=2, minibatches=4, learning_rate=0.01, value_clip=value_clip)
    by_hand, drawn = ByHand(agent), learner(kind, "ppo", epochs=2, minibatches=4)
    aims = [by_hand.aims(batch.data, row) for row in range(13)]
    optimizer = torch.optim.Adam(by_hand.net.parameters(), 0.01, eps=agent._config.optimizer_eps)
    taken = np.argwhere(mask)
    shares = list(unroll_updates.shares(drawn, 13 if kind == "a memory" else len(taken), 4))
    assert len(shares) == 8
    for share in shares:
        chosen = np.zeros_like(mask)
        if kind == "a memory":
            chosen[share] = mask[share]
        else:
            chosen[tuple(taken[share].T)] = True
        gradients = by_hand.gradient({**batch.data, "mask": chosen}, aims).values()
        for parameter, gradient in zip(by_hand.net.parameters(), gradients, strict=True):
            parameter.grad = gradient
        torch.nn.utils.clip_grad_norm_(by_hand.net.parameters(), agent._config.gradient_clip)
        optimizer.step()
    agent.update(agent.prepare(batch))
    assert agent.updates == 1
    for name, parameter in by_hand.net.named_parameters():
        moved = agent._network.parameters.split(agent._network.parameters.vector)[name]
        torch.testing.assert_close(moved.double(), parameter.detach(), rtol=0, atol=2e-4)


@pytest.mark.parametrize("optimizer", ["adam", "rmsprop", "adagrad", "sgd"])
def test_the_step_size_falls_with_what_is_left_of_the_run(optimizer: str, plays: dict[str, Batch]) -> None:
    batch = some(plays["choices"], slice(0, 16))
    moved = []
    for progress in (0.0, 0.75, 1.0):
        agent = learner("choices", "impala", optimizer=optimizer)
        before = agent._network.parameters.vector.clone()
        agent.anneal(progress)
        agent.update(agent.prepare(batch))
        moved.append(agent._network.parameters.vector - before)
    assert moved[0].any()
    torch.testing.assert_close(moved[1], 0.25 * moved[0], rtol=1e-3, atol=1e-6)
    assert not moved[2].any()


@pytest.mark.parametrize("kind", PLAYS)
def test_every_step_is_in_one_minibatch_of_an_epoch(kind: str, plays: dict[str, Batch]) -> None:
    """Final observations are in none; with a memory, unrolls stay whole."""
    agent = learner(kind, "ppo", epochs=3, minibatches=4)
    prepared = agent.prepare(some(plays[kind], slice(10, 31)))
    numbered = prepared._replace(reward=torch.arange(prepared.mask.numel()).float().view(prepared.mask.shape))
    aims = Aims(*(numbered.reward + k for k in range(3)))
    parts = list(unroll_updates.minibatches(agent, numbered, aims))
    assert len(parts) == 12
    seen = []
    for part, toward in parts:
        for k, aim in enumerate(toward):
            torch.testing.assert_close(aim, part.reward + k)  # each step has its own
        assert part.mask.all() or agent._remembers
        seen.append(part.reward[part.mask].long())
    wanted = numbered.reward[numbered.mask].sort().values.long()
    epochs = [torch.cat(seen[4 * epoch : 4 * epoch + 4]) for epoch in range(3)]
    assert all(torch.equal(epoch.sort().values, wanted) for epoch in epochs)
    assert not torch.equal(epochs[0], epochs[1])
    sizes = [len(part) for part in seen]
    if agent._remembers:
        assert [part.mask.shape[1] for part, _ in parts] == [6, 5, 5, 5] * 3
    else:
        assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("kind", ["choices", "a memory"])
def test_too_few_for_so_many_minibatches_are_fewer(kind: str, plays: dict[str, Batch]) -> None:
    agent = learner(kind, "ppo", epochs=2, minibatches=100)
    learned = agent.update(agent.prepare(some(plays[kind], slice(0, 2))))
    # unrolls one by one; single steps two by two, as no more than half of all rows are final observations
    assert float(agent._network.optimizer.steps) == (4.0 if kind == "a memory" else LENGTH * 2)
    assert np.isfinite(list(learned.metrics.values())).all()


@pytest.mark.parametrize("name", FOUR)
def test_final_observations_are_no_steps(name: str, plays: dict[str, Batch]) -> None:
    """What stands beside them is never learned from, nor what is behind a termination."""
    batch = plays["choices"]
    rng, data = np.random.default_rng(1), {key: value.copy() for key, value in batch.data.items()}
    final = ~data["mask"]
    for key in ("log_prob", "action"):
        data[key][final] = rng.integers(2, size=final.sum())
    ended = np.zeros_like(data["first"])
    ended[:, 1:] = (data["discount"] == 0) & data["mask"]
    ended[:, 0] = final[:, 0]
    data["observation"][ended] = np.nan
    assert final.any()
    both = learner("choices", name), learner("choices", name)
    for agent, given in zip(both, (batch, with_data(batch, data)), strict=True):
        agent.update(agent.prepare(given))
        assert torch.isfinite(agent._network.parameters.vector).all()
    torch.testing.assert_close(both[0]._network.parameters.vector, both[1]._network.parameters.vector)


@pytest.mark.parametrize("name", FOUR)
def test_steps_that_are_too_old_are_not_learned_from_and_count_all_the_same(name: str, plays: dict[str, Batch]) -> None:
    batch = some(plays["choices"], slice(10, 30))
    fresh = np.random.default_rng(0).random(batch.data["mask"].shape) < 0.6
    aged = with_data(batch, {**batch.data, "fresh": fresh})
    agent = learner("choices", name, gradient_clip=0.0)
    by_hand = ByHand(agent)
    aims = [by_hand.aims(batch.data, row) for row in range(20)]  # the recursion goes through all of them
    expected = by_hand.gradient(aged.data, aims)
    found = agent._network.parameters.split(agent.gradients(agent.prepare(aged)).groups["policy_value"])
    largest = max(float(gradient.abs().max()) for gradient in expected.values())
    for key, gradient in expected.items():
        torch.testing.assert_close(found[key].double(), gradient, rtol=2e-3, atol=2e-4 * largest)
    none = with_data(batch, {**batch.data, "fresh": np.zeros_like(fresh)})
    assert not agent.gradients(agent.prepare(none)).groups["policy_value"].any()


# What goes wrong


@pytest.mark.parametrize("recurrent", [False, True])
def test_a_step_that_fails_undoes_those_before_it(recurrent: bool, plays: dict[str, Batch]) -> None:
    kind = "a memory" if recurrent else "choices"
    batch = some(plays[kind], slice(0, 16))
    agent, wild = (learner(kind, "ppo", epochs=2, minibatches=4, learning_rate=rate) for rate in (1e-3, 1e39))
    agent.update(agent.prepare(batch))
    wild.load_state_dict(agent.state_dict())
    before = floats(wild)
    with pytest.raises(NonFiniteError, match="update 2: the gradient is NaN"):  # of the second step: the first went far
        wild.update(wild.prepare(batch))
    assert floats(wild) == before
    agent.load_state_dict(wild.state_dict())
    agent.update(agent.prepare(batch))
    assert agent.updates == 2


@pytest.mark.parametrize("name", FOUR)
@pytest.mark.parametrize("where", ["reward", "log_prob", "observation"])
def test_the_unroll_to_blame_is_named(name: str, where: str, plays: dict[str, Batch]) -> None:
    batch = some(plays["choices"], slice(0, 16))
    several = {} if name in ("a2c", "impala") else {"epochs": 2, "minibatches": 4}
    agent = learner("choices", name, **several)
    data = {key: value.copy() for key, value in batch.data.items()}
    data[where][3, np.flatnonzero(data["mask"][3])[0]] = np.nan
    before = floats(agent)
    with pytest.raises(NonFiniteError, match=r"update 1: the error of batch rows \[3\]"):
        agent.update(agent.prepare(with_data(batch, data)))
    assert floats(agent) == before


@pytest.mark.parametrize("kind", PLAYS)
def test_a_saved_state_goes_on_to_the_last_bit(kind: str, plays: dict[str, Batch]) -> None:
    batch = plays[kind]
    agent, other = (learner(kind, "ppo", epochs=2, minibatches=2) for _ in range(2))
    agent.update(agent.prepare(batch))
    assert floats(agent) != floats(other)
    other.load_state_dict(agent.state_dict())
    for one in (agent, other):
        one.update(one.prepare(batch))
    assert floats(agent) == floats(other)


def test_actors_hold_no_optimizer() -> None:
    agent = agent_for("ppo")
    agent.act({"observation": np.ones((3, 4), np.float32)}, None, np.zeros(3, np.float32))
    assert not {"optimizer", "gradient", "_following"} & vars(agent._network).keys()


# Learning

SIGNALS = EnvSpec({"observation": Field((2,), "float32")}, ActionSpec(n=2))


def remembered(agent: ActorCritic, rows: int, rng: np.random.Generator) -> Batch:
    """Unrolls of a game of four steps: the first observation says which action is paid for at the last one."""
    signal = rng.integers(2, size=rows)
    observation = np.zeros((rows, 5, 2), np.float32)
    observation[:, 0, 0] = 2.0 * signal - 1.0
    state, steps = None, []
    begun = {name: np.zeros((rows, 16), np.float32) for name in ("lstm_h", "lstm_c")}
    for column in range(4):
        acted = agent.act({"observation": observation[:, column]}, state, np.zeros(rows, np.float32))
        state = acted.state
        steps.append((acted.actions, acted.extras["log_prob"]))
    action, log_prob = (np.stack(parts, axis=1) for parts in zip(*steps, strict=True))
    reward, discount = np.zeros((rows, 4), np.float32), np.full((rows, 4), 0.9, np.float32)
    reward[:, 3], discount[:, 3] = action[:, 3] == signal, 0.0
    mask, first = np.ones((rows, 4), np.bool_), np.zeros((rows, 5), np.bool_)
    first[:, 0] = True
    data = {"observation": observation, "action": action, "log_prob": log_prob, "reward": reward}
    data |= {"discount": discount, "mask": mask, "first": first, **begun}
    return Batch(data, np.zeros(rows, np.uint64), np.ones(rows), np.ones(rows, np.float32))


@pytest.mark.parametrize("name", ["impala", "ppo"])
def test_it_learns_to_remember(name: str) -> None:
    own = {"summed_loss": False, "optimizer": "adam", "learning_rate": 1e-2, "optimizer_eps": 1e-8}
    config = config_of(name, unroll_length=4, memory="lstm", recurrent_units=16, **own)
    agent, rng = ActorCritic(SIGNALS, config), np.random.default_rng(0)
    for _ in range(150):
        agent.update(agent.prepare(remembered(agent, 64, rng)))
    assert remembered(agent, 500, rng).data["reward"][:, 3].mean() > 0.95


def test_optimizers_are_the_configurations(plays: dict[str, Batch]) -> None:
    """Every kind, with a state of its own: what an update does to the parameters is what the optimizer alone does."""
    batch = some(plays["choices"], slice(0, 8))
    for optimizer, momentum in (("adam", 0.0), ("rmsprop", 0.9), ("adagrad", 0.0), ("sgd", 0.0), ("sgd", 0.9)):
        agent = learner("choices", "impala", optimizer=optimizer, momentum=momentum)
        vector = agent._network.parameters.vector.clone()
        alone = make_optimizer(agent._config, vector)
        alone.step(vector, agent.gradients(agent.prepare(batch)).groups["policy_value"].clone())
        agent.update(agent.prepare(batch))
        torch.testing.assert_close(agent._network.parameters.vector, vector, rtol=0, atol=0)
        assert agent._network.optimizer.state.keys() == alone.state.keys()
        twin = ActorCritic(spec_of(CARTPOLE), replace(agent._config), "cpu", 9)
        twin.load_state_dict(agent.state_dict())
        assert floats(twin) == floats(agent)


def test_there_are_as_many_environments_as_the_unrolls_say(plays: dict[str, Batch]) -> None:
    assert {len(batch.data["mask"]) for batch in plays.values()} == {ENVS * 120 // LENGTH}
