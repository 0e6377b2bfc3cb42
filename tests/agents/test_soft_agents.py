"""SAC, discrete SAC and CrossQ against their published rules, written out with autograd and torch.optim."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from soft_reference import (
    HIGH,
    LOW,
    ROWS,
    D,
    N,
    Published,
    close,
    config_of,
    copy_moments,
    half_square,
    learned_as,
    make,
    make_batch,
    squashed,
    train,
    unclipped,
)
from torch import Tensor, nn

from apexrl.agents.rng_state import noise_generator
from apexrl.config import AgentConfig
from apexrl.errors import AgentError, ConfigError
from apexrl.networks.batch_norm import EPS, MOMENTUM, NormedLayers
from apexrl.spec import Array


def sac_losses(rule: Published, batch: Any, noise: Tensor) -> tuple[Tensor, ...]:
    alpha = rule.log_alpha.detach().exp()
    unit = 2 * (batch.action - torch.tensor(LOW)) / torch.tensor(HIGH - LOW) - 1
    later, log_prob_later = squashed(rule.policy(batch.next_observation), noise[1])
    next_q = rule.target(batch.next_observation, later).squeeze(2).min(dim=0).values
    y = (batch.reward + batch.discount * (next_q - alpha * log_prob_later)).detach()
    q = rule.critics(batch.observation, unit).squeeze(2)
    critics_loss = sum((batch.weights * half_square(y - q[k], rule.config.huber)).mean() for k in range(2))
    action, log_prob = squashed(rule.policy(batch.observation), noise[0])
    best = rule.critics(batch.observation, action).squeeze(2).min(dim=0).values
    assert isinstance(critics_loss, Tensor)
    return critics_loss, (alpha * log_prob - best).mean(), log_prob, (y - q).abs().mean(dim=0)


def tqc_losses(rule: Published, batch: Any, noise: Tensor) -> tuple[Tensor, ...]:
    """As in the authors' code (SamsungLabs/tqc_pytorch, tqc/trainer.py), with importance weights."""
    alpha, config = rule.log_alpha.detach().exp(), rule.config
    unit = 2 * (batch.action - torch.tensor(LOW)) / torch.tensor(HIGH - LOW) - 1
    later, log_prob_later = squashed(rule.policy(batch.next_observation), noise[1])
    mixture = rule.target(batch.next_observation, later).transpose(0, 1).reshape(ROWS, -1).sort(dim=1).values
    kept = mixture[:, : config.critics * (config.quantiles - config.dropped_quantiles)]
    y = (batch.reward[:, None] + batch.discount[:, None] * (kept - alpha * log_prob_later[:, None])).detach()
    z = rule.critics(batch.observation, unit).transpose(0, 1)  # [B, K, M]
    u = y[:, None, None, :] - z[:, :, :, None]
    kappa = config.huber or 1.0
    huber = torch.where(u.abs() > kappa, u.abs() - 0.5 * kappa, 0.5 * u.square() / kappa)
    tau = (torch.arange(config.quantiles) + 0.5) / config.quantiles
    losses = (tau[None, None, :, None] - (u < 0).float()).abs() * huber
    critics_loss = (batch.weights * losses.mean(dim=(1, 2, 3))).mean()
    action, log_prob = squashed(rule.policy(batch.observation), noise[0])
    policy_loss = (alpha * log_prob - rule.critics(batch.observation, action).mean(dim=(0, 2))).mean()
    return critics_loss, policy_loss, log_prob, (y.mean(dim=1, keepdim=True) - z.mean(dim=2)).abs().mean(dim=1)


class Layers:
    """REDQ's and DroQ's critics, one by one: linear, dropout, layer norm, ReLU, as in the authors' code."""

    def __init__(self, config: AgentConfig, draws: torch.Generator) -> None:
        self._config, self._draws = config, draws

    def __call__(self, critics: Any, seen: Tensor, action: Tensor, members: list[int]) -> Tensor:
        """[members, B]; every layer's mask is drawn for all of them at once."""
        layers, share = critics.layers, self._config.critic_dropout
        y = torch.cat((seen, action), dim=1).expand(len(members), ROWS, -1)
        for place in range(len(layers.weights) - 1):
            y = torch.stack([y[i] @ layers.weights[place][k] + layers.biases[place][k] for i, k in enumerate(members)])
            if share:
                y = y * torch.empty(y.shape).bernoulli_(1 - share, generator=self._draws) / (1 - share)
            if self._config.critic_layer_norm:
                scale, shift = layers.scales[place], layers.shifts[place]
                units = y.shape[-1:]
                rows = [nn.functional.layer_norm(y[i], units, scale[k, 0], shift[k, 0]) for i, k in enumerate(members)]
                y = torch.stack(rows)
            y = torch.relu(y)
        last = [y[i] @ layers.weights[-1][k] + layers.biases[-1][k] for i, k in enumerate(members)]
        return torch.stack(last).squeeze(2)


def redq_losses(rule: Published, batch: Any, noise: Tensor, draws: torch.Generator) -> tuple[Tensor, ...]:
    alpha, config = rule.log_alpha.detach().exp(), rule.config
    layers, every = Layers(config, draws), list(range(config.critics))
    seen, next_seen = batch.observation["observation"], batch.next_observation["observation"]
    unit = 2 * (batch.action - torch.tensor(LOW)) / torch.tensor(HIGH - LOW) - 1
    later, log_prob_later = squashed(rule.policy(batch.next_observation), noise[1])
    some = torch.randperm(config.critics, generator=draws)[: config.target_critics].tolist()
    q = layers(rule.critics, seen, unit, every)
    next_q = layers(rule.target, next_seen, later, some).min(dim=0).values
    y = (batch.reward + batch.discount * (next_q - alpha * log_prob_later)).detach()
    critics_loss = (0.5 * batch.weights * (y - q).square()).mean(dim=1).sum()
    action, log_prob = squashed(rule.policy(batch.observation), noise[0])
    asked = rule.due or not rule.count  # the first update has metrics, which draw for dropout too
    mean = layers(rule.critics, seen, action, every).mean(dim=0) if asked else torch.zeros(())
    return critics_loss, (alpha * log_prob - mean).mean(), log_prob, (y - q).abs().mean(dim=0)


def discrete_losses(rule: Published, batch: Any) -> tuple[Tensor, ...]:
    alpha = rule.log_alpha.detach().exp()
    later = torch.softmax(rule.policy(batch.next_observation), dim=1)
    next_q = rule.target(batch.next_observation).min(dim=0).values
    y = (batch.reward + batch.discount * (later * (next_q - alpha * later.log())).sum(dim=1)).detach()
    values = rule.critics(batch.observation)
    q = values[:, torch.arange(ROWS), batch.action[:, 0] * 3 + batch.action[:, 1]]
    critics_loss = (batch.weights * half_square(y - q, rule.config.huber)).mean(dim=1).sum()
    now = torch.softmax(rule.policy(batch.observation), dim=1)
    policy_loss = (now * (alpha * now.log() - values.detach().min(dim=0).values)).sum(dim=1).mean()
    return critics_loss, policy_loss, (now * now.log()).sum(dim=1), (y - q).abs().mean(dim=0)


RULES = {"sac": sac_losses, "tqc": tqc_losses}


@pytest.mark.parametrize("name", [*RULES, "discrete_sac"])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"huber": 0.2},
        {"policy_period_updates": 2},
        {"policy_period_updates": 2, "polyak": 0.0, "target_period_updates": 3},
    ],
    ids=str,
)
def test_updates_are_the_published_rule(name: str, changes: dict[str, Any]) -> None:
    changes = {"gradient_clip": 0.5, "policy_period_updates": 1, **changes}
    config, agent = config_of(name, **changes), make(name, seed=5, **changes)
    rule = Published(agent, config)
    draws = noise_generator(5)
    target_entropy = 0.89 * math.log(N) if name == "discrete_sac" else -2.0
    for seed in range(4):
        batch = agent.prepare(make_batch(name, seed))
        learned = agent.update(batch)
        noise = torch.randn(2, ROWS, D, generator=draws)
        losses = RULES[name](rule, batch, noise) if name in RULES else discrete_losses(rule, batch)
        critics_loss, policy_loss, log_prob, delta = losses
        rule.step(critics_loss, policy_loss, log_prob, target_entropy)
        np.testing.assert_allclose(learned.priorities, delta.detach().numpy(), rtol=2e-3, atol=1e-4)
    learned_as(agent, rule)
    assert float(rule.log_alpha.detach()) != 0.0


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("redq", {"critics": 5, "target_critics": 2}),
        ("redq", {"critics": 4, "target_critics": 3, "eager_targets": False}),
        ("droq", {"critic_dropout": 0.3}),
    ],
    ids=str,
)
def test_frequent_updates_are_the_published_rule(name: str, changes: dict[str, Any]) -> None:
    """Some critics are drawn for the target, the policy climbs the mean of all and moves every second time, and
    targets move every time; dropout is in all of these values."""
    changes = {"gradient_clip": 0.5, "policy_period_updates": 2, **changes}
    config, agent = config_of(name, **changes), make(name, seed=5, **changes)
    rule = Published(agent, config)
    draws = noise_generator(5)
    for seed in range(4):
        batch = agent.prepare(make_batch(name, seed))
        learned = agent.update(batch)
        noise = torch.randn(2, ROWS, D, generator=draws)
        critics_loss, policy_loss, log_prob, delta = redq_losses(rule, batch, noise, draws)
        rule.step(critics_loss, policy_loss, log_prob, -2.0)
        np.testing.assert_allclose(learned.priorities, delta.detach().numpy(), rtol=2e-3, atol=1e-4)
    close(agent.weights(), "policy/", rule.policy)
    close(agent.weights(), "critics/", rule.critics)
    close(agent.state_dict(), "critics/target/", rule.target)


def test_dropout_is_of_learning_alone() -> None:
    agent = make("droq", critic_dropout=0.5)
    seen = {"observation": np.ones((6, 3), np.float32)}
    found = agent.expected_returns(seen)
    np.testing.assert_array_equal(agent.expected_returns(seen), found)
    np.testing.assert_allclose(found, found[0], rtol=1e-5)  # of each row alike
    now, later = agent._answers(agent.prepare(make_batch("droq")), torch.zeros(ROWS, D))
    again = agent._answers(agent.prepare(make_batch("droq")), torch.zeros(ROWS, D))
    assert not torch.equal(now, again[0])
    assert not torch.equal(later, again[1])


@pytest.mark.parametrize("drawn", [0, 3])
def test_no_more_critics_are_drawn_than_there_are(drawn: int) -> None:
    with pytest.raises(AgentError, match=rf"--target-critics {drawn} of --critics 2: it must be one at least, and all"):
        make("droq", target_critics=drawn)


def normed(layers: NormedLayers, x: Tensor, batch: bool) -> Tensor:
    """[K, B, outputs] with PyTorch's own batch normalisation; statistics of the batch, or the running ones."""
    members = []
    for k in range(layers.count):
        y = x
        for place, (norm, weight, bias) in enumerate(zip(layers.norms, layers.weights, layers.biases, strict=True)):
            y = torch.relu(y) if place else y
            mean, variance = (None, None) if batch else (norm.mean[k, 0], norm.variance[k, 0])
            y = nn.functional.batch_norm(y, mean, variance, norm.scale[k, 0], norm.shift[k, 0], batch, eps=EPS)
            y = y @ weight[k] + bias[k]
        members.append(y)
    return torch.stack(members)


def test_crossq_is_its_published_rule() -> None:
    """One joint pass of the critics, no target, a delayed policy, β1 of 0.5; statistics of the joint batch."""
    agent, config = make("crossq", seed=5), config_of("crossq")
    train(agent, "crossq", 2)  # running statistics have moved; the third update moves the policy
    rule = Published(agent, config)
    for optimizer, trained in ((rule.of_policy, agent._policy), (rule.of_critics, agent._critics)):
        copy_moments(optimizer, trained)
    draws = noise_generator(5)
    _, _, noise = (torch.randn(2, ROWS, D, generator=draws) for _ in range(3))
    rule.count = 2
    batch = agent.prepare(make_batch("crossq", 7))
    learned = agent.update(batch)

    alpha = 1.0
    seen, later = batch.observation["observation"], batch.next_observation["observation"]
    unit = 2 * (batch.action - torch.tensor(LOW)) / torch.tensor(HIGH - LOW) - 1
    next_action, next_log_prob = squashed(normed(rule.policy.layers, later, batch=False)[0], noise[1])
    both = torch.cat((torch.cat((seen, unit), 1), torch.cat((later, next_action.detach()), 1)))
    joint = normed(rule.critics.layers, both, batch=True).squeeze(2)
    q, next_q = joint[:, :ROWS], joint[:, ROWS:].min(dim=0).values
    y = (batch.reward + batch.discount * (next_q - alpha * next_log_prob)).detach()
    critics_loss = (0.5 * batch.weights * (y - q).square()).mean(dim=1).sum()
    action, log_prob = squashed(normed(rule.policy.layers, seen, batch=True)[0], noise[0])
    best = normed(rule.critics.layers, torch.cat((seen, action), 1), batch=False).squeeze(2).min(dim=0).values
    unclipped(rule, critics_loss, (alpha * log_prob - best).mean())
    expected_mean = torch.lerp(rule.critics.layers.norms[0].mean, both.mean(dim=0).expand(2, 1, -1), MOMENTUM)

    assert learned.priorities is not None
    np.testing.assert_allclose(learned.priorities, (y - q).abs().mean(dim=0).detach().numpy(), rtol=2e-3, atol=1e-4)
    weights = agent.weights()
    close(weights, "policy/", rule.policy)
    close(weights, "critics/", rule.critics)
    np.testing.assert_allclose(weights["critics/layers.norms.0.mean"], expected_mean.numpy(), rtol=1e-4, atol=1e-6)
    assert weights["critics/layers.norms.0.batches"] == 3.0
    assert weights["policy/layers.norms.0.batches"] == 1.0
    assert weights["temperature/log"] != 0.0
    assert not [name for name in agent.state_dict() if "target" in name]


# What they share

NAMES = ("sac", "discrete_sac", "tqc", "redq", "droq", "simba_v2", "crossq")


@pytest.mark.parametrize("name", NAMES)
def test_the_policy_moves_with_every_so_many_updates(name: str) -> None:
    agent = make(name, policy_period_updates=3)
    for update in range(1, 7):
        before = agent.weights()
        train(agent, name, 1, first=update)
        after = agent.weights()
        moved = {
            part: any(not np.array_equal(before[n], after[n]) for n in before if n.startswith(part))
            for part in ("policy/", "critics/", "temperature/")
        }
        due = update % 3 == 0
        assert moved == {"policy/": due, "critics/": True, "temperature/": due}


@pytest.mark.parametrize("name", NAMES)
def test_a_fixed_temperature_stays(name: str) -> None:
    agent = make(name, temperature=0.2, policy_period_updates=1)
    train(agent, name, 3)
    assert float(agent.weights()["temperature/log"]) == pytest.approx(math.log(0.2))


@pytest.mark.parametrize(("target", "falls"), [(-50.0, True), (50.0, False)])
@pytest.mark.parametrize("name", NAMES)
def test_a_learned_temperature_steers_the_entropy(name: str, target: float, falls: bool) -> None:
    agent = make(name, target_entropy=target, initial_temperature=0.5, policy_period_updates=1)
    train(agent, name, 3)
    assert (float(agent.weights()["temperature/log"]) < math.log(0.5)) is falls


@pytest.mark.parametrize("changes", [{"temperature": -0.1}, {"initial_temperature": 0.0}])
@pytest.mark.parametrize("name", NAMES)
def test_a_temperature_must_be_positive(name: str, changes: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=r"--temperature .* --initial-temperature .* positive$"):
        make(name, **changes)


@pytest.mark.parametrize("name", ["sac", "discrete_sac", "crossq", "cql"])
def test_priorities_are_what_an_update_would_write_back(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With targets that are the networks themselves."""
    alpha, noise = 0.7, torch.randn(ROWS, D, generator=torch.Generator().manual_seed(1))
    agent = make(name, temperature=alpha)
    train(agent, name, 2)
    batch = make_batch(name, 9)
    prepared = agent.prepare(batch)
    network = agent._critics.network
    with torch.no_grad():
        output = agent._policy.network(prepared.next_observation)
        if name == "discrete_sac":
            index = prepared.action[:, 0] * 3 + prepared.action[:, 1]
            q = network(prepared.observation)[:, torch.arange(ROWS), index]
            policy = torch.softmax(output, dim=1)
            value = (policy * (network(prepared.next_observation).amin(dim=0) - alpha * policy.log())).sum(dim=1)
        else:
            monkeypatch.setattr(agent, "_white", lambda like: noise)
            unit = 2 * (prepared.action - torch.tensor(LOW)) / torch.tensor(HIGH - LOW) - 1
            q = network(prepared.observation, unit).squeeze(2)
            later, log_prob = squashed(output, noise)
            entropy = 0.0 if name == "cql" else -alpha * log_prob
            value = network(prepared.next_observation, later).squeeze(2).amin(dim=0) + entropy
    found = agent.priorities(batch.data)
    assert (found.shape, found.dtype) == ((ROWS,), np.float32)
    delta = (prepared.reward + prepared.discount * value - q).abs().mean(dim=0)
    np.testing.assert_allclose(found, delta.numpy(), rtol=1e-3, atol=1e-4)


# Truncation


def test_a_priority_of_an_actor_is_the_distance_of_means(monkeypatch: pytest.MonkeyPatch) -> None:
    noise = torch.randn(ROWS, D, generator=torch.Generator().manual_seed(1))
    agent = make("tqc", temperature=0.7, quantiles=4, critics=3, dropped_quantiles=1)
    monkeypatch.setattr(agent, "_white", lambda like: noise)
    batch = make_batch("tqc", 9)
    prepared = agent.prepare(batch)
    with torch.no_grad():
        later, log_prob = squashed(agent._policy.network(prepared.next_observation), noise)
        mixture = agent._critics.network(prepared.next_observation, later).transpose(0, 1).flatten(1).sort(dim=1).values
        y = prepared.reward + prepared.discount * (mixture[:, :9].mean(dim=1) - 0.7 * log_prob)
        q = agent._critics.network(prepared.observation, agent._box.to_unit(prepared.action)).mean(dim=2)
    np.testing.assert_allclose(agent.priorities(batch.data), (y - q).abs().mean(dim=0).numpy(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("dropped", [25, 30])
def test_a_truncation_that_leaves_nothing_is_refused(dropped: int) -> None:
    with pytest.raises(AgentError, match=rf"--dropped-quantiles {dropped} of every critic's --quantiles 25: one at"):
        make("tqc", dropped_quantiles=dropped)


# Acting


def act(agent: Any, rows: int, exploration: float = 0.0, greedy: bool = False) -> Array:
    seen = {"observation": np.tile(np.array([0.3, -0.2, 0.9], np.float32), (rows, 1))}
    actions: Array = agent.act(seen, None, np.full(rows, exploration, np.float32), greedy).actions
    return actions


@pytest.mark.parametrize("name", ["sac", "tqc", "redq", "crossq"])
def test_actions_are_samples_of_the_squashed_gaussian(name: str) -> None:
    agent = make(name)
    middle, half = (HIGH + LOW) / 2, (HIGH - LOW) / 2
    seen = {"observation": torch.tensor([[0.3, -0.2, 0.9]])}
    with torch.no_grad():
        mean, log_std = agent._policy.network(seen)[0].numpy().reshape(2, D)
    u = np.arctanh(np.clip((act(agent, 4000) - middle) / half, -1 + 1e-6, 1 - 1e-6))
    np.testing.assert_allclose(u.mean(axis=0), mean, atol=0.08)
    np.testing.assert_allclose(u.std(axis=0), np.exp(log_std), rtol=0.05)
    np.testing.assert_allclose(act(agent, 1, greedy=True)[0], middle + half * np.tanh(mean), rtol=1e-5)


def test_discrete_actions_are_samples_of_the_softmax() -> None:
    agent = make("discrete_sac")
    with torch.no_grad():
        logits = 5.0 * agent._policy.network({"observation": torch.tensor([[0.3, -0.2, 0.9]])})[0]
        agent._policy.parameters.load(
            {
                **agent._policy.parameters.arrays(),
                "head.weight": 5.0 * agent._policy.network.head.weight.numpy(),
                "head.bias": 5.0 * agent._policy.network.head.bias.numpy(),
            }
        )
    actions = act(agent, 6000)
    counts = np.bincount(actions[:, 0] * 3 + actions[:, 1], minlength=N) / 6000
    np.testing.assert_allclose(counts, torch.softmax(logits, dim=0).numpy(), atol=0.03)
    assert np.ptp(counts) > 0.1
    best = int(logits.argmax())
    assert act(agent, 1, greedy=True)[0].tolist() == [best // 3, best % 3]


def test_crossq_acts_by_the_running_statistics_that_it_was_sent() -> None:
    learner, actor = make("crossq", seed=1), make("crossq", seed=2)
    train(learner, "crossq", 9)
    actor.load(learner.weights())
    np.testing.assert_array_equal(act(actor, 3, greedy=True), act(learner, 3, greedy=True))
    sent = learner.weights()
    sent["policy/layers.norms.0.mean"] = sent["policy/layers.norms.0.mean"] + 1.0
    actor.load(sent)
    assert not np.allclose(act(actor, 1, greedy=True), act(learner, 1, greedy=True))


@pytest.mark.parametrize("name", NAMES)
def test_actors_hold_no_optimizer_and_no_target(name: str) -> None:
    agent = make(name)
    act(agent, 2)
    agent.load(agent.weights())
    for part in (agent._policy, agent._critics, agent._temperature.trained):
        assert not {"optimizer", "gradient", "_following"} & vars(part).keys()
