"""Every agent with discrete actions under masks: what it chooses, and what it learns from."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from signal_runs import SMALL
from torch import Tensor

from apexrl.agents import AGENTS, agent_class, with_agent
from apexrl.agents.action_masks import LEAST, EveryAction, MaskedActions, action_masks, random_possible
from apexrl.agents.agent_info import BOX
from apexrl.config import Config
from apexrl.config.convert import override
from apexrl.errors import SpecError
from apexrl.evaluation.loaded_agent import LoadedAgent
from apexrl.networks.distributions import Categorical
from apexrl.spec import ACTION_MASK, OBSERVATION, ActionSpec, EnvSpec, Field

DISCRETE = [name for name, info in AGENTS.items() if not info.needs.startswith(BOX)]
ROWS, STEPS = 6, 4


def spec_of(nvec: tuple[int, ...] = (), stack: int = 1) -> EnvSpec:
    action = ActionSpec(shape=(len(nvec),), nvec=nvec, starts=(0,) * len(nvec)) if nvec else ActionSpec(n=5)
    fields = {"observation/obs": Field((3,), "float32"), ACTION_MASK: Field((sum(action.choices),), "bool")}
    return EnvSpec(fields, action, stack)


def masks_of(spec: EnvSpec, shape: tuple[int, ...], rng: np.random.Generator) -> NDArray[np.bool_]:
    """Random masks [*shape, n], each choice with at least one possible action, and rarely with all."""
    parts = []
    for n in spec.action.choices:
        part = rng.random((*shape, n)) < 0.4
        np.put_along_axis(part, rng.integers(n, size=(*shape, 1)), True, axis=-1)
        parts.append(part)
    return np.concatenate(parts, axis=-1)


def seen_by(spec: EnvSpec, lead: tuple[int, ...], rng: np.random.Generator) -> dict[str, NDArray[Any]]:
    shape = (*lead, spec.stack) if spec.stack > 1 else lead
    return {"observation/obs": rng.standard_normal((*shape, 3), np.float32), ACTION_MASK: masks_of(spec, shape, rng)}


def newest(spec: EnvSpec, masks: NDArray[np.bool_]) -> NDArray[np.bool_]:
    return masks[..., -1, :] if spec.stack > 1 else masks


def made(name: str, spec: EnvSpec, **changes: Any) -> Any:
    own = AGENTS[name].settings
    small = {**SMALL, "n_step": own.get("n_step", 1), "minibatches": own.get("minibatches", 1)}
    config = override(with_agent(Config(), name), {**small, **changes})
    return agent_class(name)(spec, config.agent, "cpu", 1)


def permitted(spec: EnvSpec, masks: NDArray[np.bool_], actions: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which of actions [B] or [B, k] masks [B, n] leave."""
    starts = np.cumsum((0, *spec.action.choices[:-1]))
    return np.take_along_axis(masks, actions.reshape(len(masks), -1) + starts, axis=1).all(axis=1)


CASES = [(name, nvec, {}) for name in DISCRETE for nvec in ((), (2, 3))]
CASES += [("ppo", (2, 2, 2), {"pink_noise": True}), ("ppo", (2, 3), {"memory": "lstm"}), ("dqn", (2, 2, 2), {})]
CASES += [(name, (), {"memory": "gru"}) for name in ("dueling_dqn", "discrete_sac")]


@pytest.mark.parametrize(("name", "nvec", "changes"), CASES)
def test_no_agent_takes_an_action_that_is_not_possible(
    name: str, nvec: tuple[int, ...], changes: dict[str, Any]
) -> None:
    spec = spec_of(nvec, stack=2 if nvec else 1)
    agent, rng, state = made(name, spec, **changes), np.random.default_rng(0), None
    taken = set()
    for turn in range(4):
        seen = seen_by(spec, (120,), rng)
        exploration = np.tile(np.array([0.0, 0.3, 1.0, np.inf, 0.5, 0.0], np.float32), 20)
        actions, _, state = agent.act(seen, state, exploration, greedy=turn % 2 == 1)
        assert permitted(spec, newest(spec, seen[ACTION_MASK]), np.asarray(actions)).all()
        taken |= {tuple(np.atleast_1d(one)) for one in actions}
    if hasattr(agent, "expected_returns"):
        assert (np.abs(agent.expected_returns(seen)) < 1e6).all()
    assert taken == set(product(*map(range, spec.action.choices)))  # and each was possible sometimes


def transitions_of(spec: EnvSpec, rng: np.random.Generator) -> Any:
    from apexrl.agents.transition_batch import Transitions

    def tensors() -> dict[str, Tensor]:
        return {key: torch.from_numpy(value) for key, value in seen_by(spec, (ROWS,), rng).items()}

    now, later = tensors(), tensors()
    possible = random_possible(newest(spec, now[ACTION_MASK].numpy()), rng)
    numbers = [torch.from_numpy(rng.standard_normal(ROWS).astype(np.float32)) for _ in range(1)]
    discount = torch.tensor([0.9, 0.9, 0.0, 0.9, 0.9, 0.9])
    return Transitions(now, later, torch.from_numpy(possible), numbers[0], discount, torch.ones(ROWS))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"double": False},
        {"dueling": False},
        {"distribution": "quantile"},
        {"distribution": "categorical"},
        {"munchausen": True, "double": False},
    ],
)
def test_the_written_out_gradient_under_masks_is_autograds(changes: dict[str, Any]) -> None:
    spec = spec_of()
    agent = made("dueling_dqn", spec, n_step=1, **changes)
    batch = transitions_of(spec, np.random.default_rng(0))
    found = agent._loss_by_hand(batch, True)
    by_hand = agent._network.gradient.clone()
    loss = agent.loss(batch)
    agent._network.differentiate(loss.loss)
    torch.testing.assert_close(by_hand, agent._network.gradient, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(found.loss, loss.loss)
    torch.testing.assert_close(found.priorities, loss.priorities)


@pytest.mark.parametrize("name", ["dqn", "double_dqn", "munchausen_dqn", "qr_dqn", "discrete_sac"])
def test_what_an_impossible_action_would_be_worth_counts_nowhere(name: str) -> None:
    """Of the later state action 0 is masked, and was not taken: whatever its value, targets are the same."""
    spec = spec_of()
    batch = transitions_of(spec, np.random.default_rng(3))
    for side in (batch.observation, batch.next_observation):
        side[ACTION_MASK][:, 0], side[ACTION_MASK][:, 1] = False, True
    batch = batch._replace(action=torch.where(batch.action == 0, 1, batch.action))
    priorities = []
    for worth in (0.0, 50.0):
        agent = made(name, spec, dueling=False, hidden=(8,))
        for trained in agent.networks.values():
            for network in (trained.network, trained.target if trained._has_target else trained.network):
                for parameter_name, parameter in network.named_parameters():
                    if parameter.ndim == 1 and parameter.shape[0] % 5 == 0 and "head" in parameter_name:
                        with torch.no_grad():
                            parameter.view(5, -1)[0] = worth
        getattr(agent, "refresh", lambda: None)()
        priorities.append(agent.gradients(batch).priorities)
        for trained in agent.networks.values():
            for parameter_name, parameter in trained.network.named_parameters():
                if parameter.ndim == 1 and parameter.shape[0] % 5 == 0 and "head" in parameter_name:
                    assert not parameter.grad.view(5, -1)[0].any()
    np.testing.assert_allclose(*priorities, rtol=1e-5)


def test_the_metric_q_is_of_possible_actions() -> None:
    spec = spec_of()
    agent, batch = made("dqn", spec, hidden=(8,)), transitions_of(spec, np.random.default_rng(3))
    found = agent.gradients(batch)  # the first update is measured
    q = agent._network.network(batch.observation).detach()
    assert found.metrics["q"] == pytest.approx(
        float(q[torch.as_tensor(batch.observation[ACTION_MASK])].mean()), rel=1e-5
    )


def test_a_policy_and_its_entropy_are_those_of_the_possible_actions() -> None:
    """log π, entropy and ratios of PPO against a softmax over the possible actions alone."""
    from apexrl.agents.unroll_batch import Unrolls

    for nvec in ((), (2, 3)):
        spec, rng = spec_of(nvec), np.random.default_rng(1)
        agent = made("ppo", spec)
        seen = seen_by(spec, (ROWS, STEPS + 1), rng)
        flat = {key: value.reshape(-1, *value.shape[2:]) for key, value in seen.items()}
        acted = agent.act(flat, None, np.zeros(ROWS * (STEPS + 1), np.float32))
        outputs, _ = agent._network.network.act({key: torch.from_numpy(value) for key, value in flat.items()}, None)
        entropies, wanted = [], []
        for logits, mask, action in zip(outputs.detach().double(), flat[ACTION_MASK], acted.actions, strict=True):
            log_prob = entropy = 0.0
            ends = np.cumsum(spec.action.choices)
            for choice, end, n in zip(np.atleast_1d(action), ends, spec.action.choices, strict=True):
                left = np.flatnonzero(mask[end - n : end])
                p = torch.softmax(logits[end - n : end][left], 0)
                log_prob += float(p[list(left).index(choice)].log())
                entropy -= float((p * p.log()).sum())
            wanted.append(log_prob)
            entropies.append(entropy)
        np.testing.assert_allclose(acted.extras["log_prob"], wanted, rtol=1e-4, atol=1e-5)

        def turned(values: Any) -> Tensor:
            shaped = np.asarray(values).reshape(ROWS, STEPS + 1, *np.shape(values)[1:]).swapaxes(0, 1)[:STEPS]
            return torch.from_numpy(np.ascontiguousarray(shaped))

        nothing = torch.zeros((STEPS, ROWS))
        batch = Unrolls(
            agent._masks.addends({key: torch.from_numpy(value) for key, value in seen.items()}),
            {},
            torch.zeros((STEPS + 1, ROWS), dtype=torch.bool),
            (),
            turned(acted.actions),
            turned(acted.extras["log_prob"]),
            nothing,
            nothing,
            nothing == 0,
            nothing == 0,
        )
        now = agent._evaluate(batch)
        torch.testing.assert_close(now.log_prob.detach(), batch.log_prob, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(now.entropy.detach(), turned(entropies).float(), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(agent._ratio(batch, now), torch.ones(STEPS, ROWS), rtol=1e-4, atol=1e-5)
        now.entropy.sum().backward(retain_graph=True)
        assert all(torch.isfinite(p.grad).all() for p in agent._network.network.parameters() if p.grad is not None)


@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize("choices", [(4,), (2, 3), (2, 3, 2)])
def test_masks_of_several_choices_are_those_of_their_combinations(choices: tuple[int, ...], stacked: bool) -> None:
    spec, rng = spec_of(choices if len(choices) > 1 else (), 2 if stacked else 1), np.random.default_rng(0)
    if len(choices) == 1:
        spec = replace(spec, action=ActionSpec(n=4), observation={ACTION_MASK: Field((4,), "bool")})
    masks = masks_of(spec, (ROWS, STEPS, 2) if stacked else (ROWS, STEPS), rng)
    last = masks[..., -1, :] if stacked else masks
    n = int(np.prod(choices))
    combined = np.zeros((ROWS, STEPS, n), np.bool_)
    starts = np.cumsum((0, *choices[:-1]))
    for number, each in enumerate(product(*map(range, choices))):
        combined[..., number] = np.all([last[..., s + c] for s, c in zip(starts, each, strict=True)], axis=0)
    found = action_masks(spec, combined=True)
    assert isinstance(found, MaskedActions)
    outputs = torch.from_numpy(rng.standard_normal((STEPS, ROWS, n)).astype(np.float32))
    values = found.unrolled(outputs[:3], {ACTION_MASK: torch.from_numpy(masks)})
    wanted = np.where(combined.swapaxes(0, 1)[:3], outputs[:3], np.float32(LEAST))
    assert np.array_equal(values.numpy(), wanted)
    addends = found.addends({ACTION_MASK: torch.from_numpy(masks)})
    assert np.array_equal(found.added(outputs[:3], addends).numpy(), wanted)
    taken, explore = np.full(ROWS, n - 1), np.arange(ROWS) % 2 == 0
    drawn = found.explored(taken, explore, rng, {ACTION_MASK: masks[:, 0]})
    assert combined[np.arange(ROWS), 0, drawn][explore].all()
    assert (drawn[~explore] == n - 1).all()
    assert found.explored(taken, explore & False, rng, {}) is taken


@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize("choices", [(4,), (2, 3)])
def test_masks_of_arrays_are_those_of_tensors(choices: tuple[int, ...], stacked: bool) -> None:
    rng = np.random.default_rng(3)
    frames = (2,) if stacked else ()
    observation = {
        OBSERVATION: rng.random((6, *frames, 3), np.float32),
        ACTION_MASK: rng.random((6, *frames, sum(choices))) < 0.5,
    }
    for combined in (False, True):
        masks = MaskedActions(choices, stacked, combined)
        outputs = rng.random((6, int(np.prod(choices)) if combined else sum(choices)), np.float32)
        acted = masks.acted(outputs, observation)
        assert acted.dtype == np.float32
        seen = {name: torch.from_numpy(array) for name, array in observation.items()}
        for values in (torch.from_numpy(outputs), torch.from_numpy(outputs).requires_grad_()):
            np.testing.assert_array_equal(acted, masks.values(values, seen).detach().numpy())
        assert (acted == np.float32(LEAST)).any()
        assert list(masks.networks_see(observation)) == [OBSERVATION]
    assert EveryAction(4).acted(outputs, observation) is outputs
    assert EveryAction(4).networks_see(observation) is observation


def test_actions_that_are_not_possible_have_no_gradient() -> None:
    rng = np.random.default_rng(4)
    masks = MaskedActions((5,), stacked=False, combined=False)
    possible = masks_of(spec_of(), (6, 1), rng)
    seen = {ACTION_MASK: torch.from_numpy(possible)}
    action, policy = torch.from_numpy(possible.argmax(axis=2)), Categorical((5,), vector=False)
    found = []
    for ways in (lambda x: masks.unrolled(x, seen), lambda x: masks.added(x, masks.addends(seen))):
        outputs = torch.arange(30.0).reshape(1, 6, 5).requires_grad_()
        score = policy.score(ways(outputs)[0], action)
        (score.log_prob - 0.1 * score.entropy).sum().backward()
        found.append(outputs.grad)
        assert (found[-1][0].numpy()[~possible[:, 0]] == 0.0).all()
        assert (found[-1][0].numpy()[possible[:, 0]] != 0.0).any()
    torch.testing.assert_close(*found)


def test_random_possible_actions_are_uniform() -> None:
    rng = np.random.default_rng(0)
    mask = np.tile(np.array([[False, True, False, True, True]]), (30_000, 1))
    counts = np.bincount(random_possible(mask, rng), minlength=5)
    assert counts[0] == counts[2] == 0
    np.testing.assert_allclose(counts[[1, 3, 4]] / 30_000, 1 / 3, atol=0.01)
    assert random_possible(np.zeros((2, 3), np.bool_), rng).tolist() == [0, 0]


def test_of_fewer_possible_actions_a_policy_is_to_have_the_same_share_of_entropy() -> None:
    spec = spec_of()
    masks, target = action_masks(spec, combined=True), 0.89 * float(np.log(5))
    seen = {ACTION_MASK: torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [0, 1, 0, 0, 0]], dtype=torch.bool)}
    attained = -0.89 * torch.tensor([5.0, 2.0, 1.0]).log()
    torch.testing.assert_close(masks.steered(attained, seen, target) + target, torch.zeros(3), rtol=0, atol=1e-6)
    assert isinstance(action_masks(EnvSpec({}, ActionSpec(n=5))), EveryAction)


@pytest.mark.parametrize("name", ["dqn", "r2d2", "ppo", "discrete_sac"])
def test_networks_and_normalisation_do_not_read_masks(name: str) -> None:
    spec = spec_of()
    plain = replace(spec, observation={"observation/obs": spec.observation["observation/obs"]})
    masked, without = made(name, spec, normalize_observations=True), made(name, plain, normalize_observations=True)
    assert {key: value.shape for key, value in masked.weights().items()} == {
        key: value.shape for key, value in without.weights().items()
    }


def test_an_encoder_of_ones_own_is_shown_no_mask() -> None:
    agent = made("ppo", spec_of(), network=f"{__name__}:Own")
    rng = np.random.default_rng(0)
    agent.act(seen_by(spec_of(), (ROWS,), rng), None, np.zeros(ROWS, np.float32))
    assert Own.given == {"observation/obs"}


def test_a_loaded_agent_takes_the_mask_beside_the_observation_or_in_it() -> None:
    spec = spec_of()
    loaded, rng = LoadedAgent(made("ppo", spec), spec), np.random.default_rng(0)
    for _ in range(5):
        one = {key.removeprefix("observation/"): value[0] for key, value in seen_by(spec, (1,), rng).items()}
        inside = loaded.act(one)
        assert one["action_mask"][inside]
        assert loaded.act(one["obs"], action_mask=one["action_mask"].astype(np.int8)) == inside
    with pytest.raises(SpecError, match=r"ActionMasks, too, or call act\(observation, action_mask=mask\)"):
        loaded.act(one["obs"])
    with pytest.raises(SpecError, match="observation/action_mask of row 1 masks every action: a mask must leave one"):
        loaded.act(np.zeros((2, 3), np.float32), action_mask=np.array([[1, 0, 0, 0, 0], [0, 0, 0, 0, 0]]))
    with pytest.raises(SpecError, match="action_mask holds float32 values: give it bool or integers"):
        loaded.act(one["obs"], action_mask=one["action_mask"].astype(np.float32))
    plain = EnvSpec({"observation": Field((3,), "float32")}, spec.action)
    with pytest.raises(SpecError, match="was trained without action masks"):
        LoadedAgent(made("ppo", plain), plain).act(one["obs"], action_mask=one["action_mask"])


@pytest.mark.parametrize(
    ("name", "nvec", "actions"),
    [
        pytest.param("dqn", (2, 3), "greedy", marks=pytest.mark.long),
        pytest.param("r2d2", (), "greedy", marks=pytest.mark.long),
        pytest.param("discrete_sac", (2, 3), "sampled", marks=pytest.mark.long),
        pytest.param("ppo", (2, 3), "sampled", marks=pytest.mark.long),
    ],
)
def test_an_exported_file_takes_the_mask_as_an_input(
    name: str, nvec: tuple[int, ...], actions: Any, tmp_path: Path
) -> None:
    import onnxruntime

    spec = spec_of(nvec)
    loaded, rng = LoadedAgent(made(name, spec), spec), np.random.default_rng(0)
    shapes = loaded.export(tmp_path / "agent.onnx", actions=actions)
    assert shapes["inputs"][ACTION_MASK] == ["bool", ["batch", sum(spec.action.choices)]]
    run = onnxruntime.InferenceSession(tmp_path / "agent.onnx", providers=["CPUExecutionProvider"])
    seen: dict[str, Any] = seen_by(spec, (200,), rng)
    given = seen | {
        one.name: rng.random((200, *one.shape[1:])).astype(np.float32)
        for one in run.get_inputs()
        if one.name not in seen
    }
    chosen = run.run(["action"], given)[0]
    assert permitted(spec, seen[ACTION_MASK], chosen).all()
    if actions == "greedy" and name != "r2d2":
        assert np.array_equal(chosen, loaded.act({key.split("/")[1]: value for key, value in seen.items()}))


class Own(torch.nn.Module):
    """Notes what it is given."""

    features = 3
    given: ClassVar[set[str]] = set()

    def __init__(self, spec: EnvSpec) -> None:
        super().__init__()
        assert not spec.masked

    def forward(self, observation: dict[str, Tensor]) -> Tensor:
        Own.given |= observation.keys()
        return observation["observation/obs"]
