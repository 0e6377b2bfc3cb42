"""A policy and its value from unrolls: A2C and A3C, IMPALA, PPO and APPO, as two switches that compose.

``correction`` says whether advantages make up for the policy lag of the unrolls: none of it (GAE), or V-trace.
``surrogate`` says how the policy follows them: A·log π, or PPO's clipped ratio. With each of the four pairs comes
everything else: memory, continuous actions, several epochs and minibatches.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from apexrl.agents import diagnostics, trained_agent, unroll_updates
from apexrl.agents.acting_noise import LEVELS, ActingNoise
from apexrl.agents.action_masks import action_masks
from apexrl.agents.box_actions import ActionBox
from apexrl.agents.decision import Decision
from apexrl.agents.horizon import gamma_share
from apexrl.agents.hybrid_actions import HybridActions
from apexrl.agents.layer_choice import layer_choice
from apexrl.agents.memory import memory_choice
from apexrl.agents.normalizer import Normalizer
from apexrl.agents.rng_state import RandomGenerator, acting_generator, seeded_layers
from apexrl.agents.setting_relevance import check_gradient_steps
from apexrl.agents.trained_network import Gradients, Trained, not_finite
from apexrl.agents.transition_batch import Observation, as_array, on_device
from apexrl.agents.unroll_batch import Unrolls, unrolls
from apexrl.config import AgentConfig
from apexrl.errors import AgentError
from apexrl.losses import (
    clipped_surrogate,
    clipped_value_loss,
    gae,
    gradient_surrogate,
    normalized_advantage,
    unexplained,
    value_loss,
    vtrace,
)
from apexrl.networks.distributions import Categorical, Distribution, Gaussian, Hybrid, log_std_bounds
from apexrl.networks.memory import State as MemoryState
from apexrl.networks.policy_value import SMALL_VALUE_GAIN, PolicyValue
from apexrl.protocols import Acted, Arrays, Item, Sampled, State
from apexrl.spec import GLOBAL_STATE, Array, EnvSpec, Field

GROUP = "policy_value"
LOG_PROB, SAMPLE = "log_prob", "sample"  # fields
BOX_WHITE = 0.25
"""Share of white noise in boxes. Of random episodes of MountainCarContinuous 70 % reach the goal by such noise, and
12 % with 0.75; pink noise alone is bad for gaits. (Hollenstein et al. 2024, Colored Noise in PPO, AAAI: noise
between white and pink.)"""
LOG_RATIO_MAX = 20.0  # ours: an action that has become so much likelier says nothing, and e^89 is infinite


class Evaluated(NamedTuple):
    """The network's present outputs for unrolls."""

    log_prob: Tensor  # [T, B] log π(a|s)
    entropy: Tensor  # [T, B] nats
    values: Tensor  # [T + 1, B], of all observations; [T, B] where there is none to bootstrap from


class Aims(NamedTuple):
    """Targets and advantages of one update, all [T, B] and without gradient."""

    target: Tensor  # of the values
    advantage: Tensor
    before: Tensor  # V, from which the two were made


class ActorCritic:
    """Acts by a policy that explores by itself, and learns it from unrolls, each of which is learned from once.

    Every step carries log μ(a|s), μ being the policy that chose it. Where actions are a box, the policy is a Gaussian
    over its unit range −1 … 1 (``agents.box_actions``). Its draws are clipped for the environment and kept as they
    were for the learner; its mean depends on the observation, its σ does not. Of hybrid actions it is that, and a
    softmax for every choice.

    Args:
        spec: the environment; a box of actions needs no bounds.
        device: of PyTorch, ``"cpu"`` or ``"cuda…"``.
        seed: of the network's first weights, of acting, and of the shuffling of minibatches.

    Raises:
        AgentError: an unroll would have no steps, values are to be clipped in updates of one gradient step, the
            log-probability is to be followed for several, or a central value would see no state.
    """

    def __init__(self, spec: EnvSpec, config: AgentConfig, device: str = "cpu", seed: int = 0) -> None:
        if min(config.unroll_length, config.epochs, config.minibatches, config.recurrent_units) < 1:
            raise AgentError(
                f"unroll_length {config.unroll_length}, epochs {config.epochs}, minibatches {config.minibatches} and "
                f"recurrent_units {config.recurrent_units} must be at least 1"
            )
        if config.value_clip and config.epochs * config.minibatches == 1:
            raise AgentError(
                f"value_clip {config.value_clip:g} holds values to where they were before an update, and an update of "
                "one gradient step begins there: leave it out, or set epochs or minibatches above 1"
            )
        check_gradient_steps(config)
        self.acting_spec = _acting_spec(spec, config)
        """What it acts by: without the state of the environment where the value alone sees that."""
        self.item = Item("unroll", config.unroll_length)
        self._config = config
        self._device = torch.device(device)
        self._rng = acting_generator(seed)
        self._box: ActionBox | HybridActions | None = None
        self._policy: Distribution
        self._masks = action_masks(spec)
        if spec.action.hybrid:
            self._box = both = HybridActions(spec.action, config.agent, bounds_needed=False)
            self._policy, free = Hybrid(both.nvec, both.box.size, config.least_std), both.box.size
            self.policy_noise = ActingNoise(both.size, config.pink_noise, BOX_WHITE)
        elif spec.action.box:
            self._box = ActionBox(spec.action, config.agent, bounds_needed=False)
            self._policy, free = Gaussian(self._box.size, config.least_std), self._box.size
            self.policy_noise = ActingNoise(self._box.size, config.pink_noise, BOX_WHITE)
        else:
            choices = spec.action.nvec or (spec.action.n,)
            self._policy, free = Categorical(choices, vector=bool(spec.action.nvec)), 0
            self.policy_noise = ActingNoise(len(choices), config.pink_noise, kind="uniform")
        choice = memory_choice(config)
        self._remembers = choice is not None
        with seeded_layers(seed):
            outputs = self._policy.outputs - free
            network = PolicyValue(
                spec,
                config.hidden,
                outputs,
                free,
                choice,
                config.image_units,
                config.network,
                config.separate_values and choice is None,
                layer_choice(config),
                config.central_value,
                SMALL_VALUE_GAIN if config.central_value and config.normalize_returns else 1.0,
                math.log(config.initial_std),
                log_std_bounds(config.least_std),
            ).to(self._device)
        memory = network.recurrent.memory if network.recurrent is not None else None
        self._memory_shapes = memory.fields if memory is not None else {}
        self._network = Trained("", network, config, apart="value" if network.value_trunk is not None else "")
        self._normalizer = Normalizer(spec, config, self._device, config.popart)
        self.networks: dict[str, Trained[Any]] = {GROUP: self._network, **self._normalizer.networks}
        self.generators: dict[str, RandomGenerator] = {"rng": self._rng}
        self.updates = 0  # learner updates made
        self._state_shapes = {name: field.shape for name, field in self.step_spec.items() if field.per_item}

    @property
    def step_spec(self) -> dict[str, Field]:
        """Every step records log μ(a|s), and of a box what was drawn; every unroll the state before it: a memory's,
        and pink noise's, of which nothing is learned, as roles that keep no states get them from what is recorded."""
        fields = {LOG_PROB: Field((), "float32")}
        if self._box is not None:
            fields |= {SAMPLE: Field((self._box.size,), "float32")}
        fields |= self.policy_noise.state_spec
        return fields | {name: Field(shape, "float32", per_item=True) for name, shape in self._memory_shapes.items()}

    def _state(self, parts: Mapping[str, Tensor]) -> MemoryState | None:
        """The memory's state, of its parts by name."""
        trunk = self._network.network.recurrent
        if trunk is None:
            return None
        return trunk.memory.state(*(parts[name] for name in self._memory_shapes))

    # Acting

    def act(self, observations: Arrays, state: State, exploration: NDArray[np.float32], greedy: bool = False) -> Acted:
        """Actions drawn from the policy, or the likeliest. ``exploration`` plays no part; ``state`` name -> [B, …]."""
        rows = len(exploration)
        given: dict[str, Array] = {
            name: np.zeros((rows, *shape), np.float32) for name, shape in self._state_shapes.items()
        }
        given |= state or {}
        noise: State = {LEVELS: given[LEVELS]} if LEVELS in given and not greedy else None
        with torch.no_grad():
            before = on_device({name: given[name] for name in self._memory_shapes}, self._device)
            shown = on_device(self._masks.networks_see(observations), self._device)
            seen = self._normalizer.observation(shown)
            outputs, after = self._network.network.act(seen, self._state(before))
            said = self._masks.acted(as_array(outputs), observations)
            if greedy:
                drawn = self._policy.mode(said)
                log_prob = as_array(self._policy.score(torch.from_numpy(said), torch.from_numpy(drawn)).log_prob)
            else:
                numbers, noise = self.policy_noise.numbers(rows, noise, self._rng)
                drawn, log_prob = self._policy.drawn(said, numbers)
        extras: dict[str, Array] = {LOG_PROB: log_prob, **given}
        later: dict[str, Array] = {
            name: as_array(part) for name, part in zip(self._memory_shapes, after or (), strict=True)
        }
        later |= noise or {}
        if self._box is None:
            return Acted(drawn, extras, later or None)
        return Acted(self._box.to_env(cast("NDArray[np.float32]", drawn)), extras | {SAMPLE: drawn}, later or None)

    def decide(self, observation: Observation, state: Mapping[str, Tensor], noise: Tensor | None = None) -> Decision:
        """The action of raw observations, drawn by ``noise`` or greedy, in PyTorch alone; see ``Draws``."""
        outputs, after = self._network.network.act(self._normalizer.observation(observation), self._state(state))
        chosen = self._policy.chosen(self._masks.values(outputs, observation), noise)
        action = chosen if self._box is None else self._box.to_env_tensor(chosen)
        return Decision(action, dict(zip(self._memory_shapes, after or (), strict=True)))

    @torch.no_grad()
    def expected_returns(self, observations: Arrays) -> NDArray[np.float32]:
        """V(s) [B] of episodes' first observations, before which a memory's state is zero."""
        scaled = self._normalizer.observation(on_device(observations, self._device))
        seen = {name: value.unsqueeze(1) for name, value in scaled.items()}
        rows = len(next(iter(seen.values())))
        shapes = self._memory_shapes
        zeros = {name: torch.zeros((rows, *shape), device=self._device) for name, shape in shapes.items()}
        first = torch.zeros((1, rows), dtype=torch.bool, device=self._device)
        values = self._normalizer.values().of(self._network.network.unroll(seen, self._state(zeros), first)[1][0])
        return as_array(values * self._normalizer.unit)

    # Learning

    def prepare(self, batch: Sampled) -> Unrolls:
        """Hand a batch over to the device, time first, with addends of logits in place of masks of actions."""
        action, states = "action" if self._box is None else SAMPLE, tuple(self._memory_shapes)
        handed = unrolls(batch, action, states, self._device, gamma_share(self._config, self.updates))
        return handed._replace(observation=self._masks.addends(handed.observation))

    gradients, apply = unroll_updates.gradients, unroll_updates.apply
    update, steps = unroll_updates.update, unroll_updates.steps

    def aims(self, batch: Unrolls) -> Aims:
        """Targets and advantages of a scaled batch, by the network as it is; the ratio of every later gradient step
        stays that to the policy that acted."""
        return self._aims(batch, self._evaluate(batch))

    def step(self, groups: Mapping[str, Tensor]) -> None:
        """One step of the optimizer, which alone is no update."""
        self._network.step(groups[GROUP])
        self._normalizer.step(groups, self._network.network.value)

    def part_gradients(self, batch: Unrolls, aims: Aims | None, measured: bool) -> Gradients:
        """``gradients``, with targets and advantages as given, or this pass's; with metrics where ``measured``."""
        network = self._network
        with diagnostics.DeadUnits(measured) as units:
            now = self._evaluate(batch)
        aims = self._aims(batch, now) if aims is None else aims
        loss = self.loss(batch, now, aims)
        network.differentiate(loss)
        gradient_norm = network.clip(self.updates)
        metrics: dict[str, float] = {}
        if measured:
            metrics = {"loss": float(loss.detach()), **self._metrics(batch, now), "gradient_norm": gradient_norm}
            metrics |= diagnostics.of_networks(self.networks) | units.share() | self._of_steps(batch, now, aims)
        return Gradients({GROUP: network.gradient}, None, metrics)

    def _evaluate(self, batch: Unrolls) -> Evaluated:
        """The network's outputs for every observation; a memory runs again from the state that the actor had."""
        memory = self._state(batch.state)
        seen = self._masks.networks_see(batch.observation)
        outputs, values = self._network.network.unroll(seen, memory, batch.first, batch.resets)
        steps = len(batch.mask)
        outputs = self._masks.added(outputs[:steps], batch.observation)
        log_prob, entropy = self._policy.score(outputs.flatten(0, 1), batch.action.flatten(0, 1))
        values = self._normalizer.values().of(values)
        return Evaluated(log_prob.view(batch.mask.shape), entropy.view(batch.mask.shape), values)

    def _aims(self, batch: Unrolls, now: Evaluated) -> Aims:
        """Targets and advantages, as ``correction`` says.

        Raises:
            NonFiniteError: one of them, or a log-probability, is NaN or infinite; the message names the unrolls.
        """
        config = self._config
        steps = (batch.reward, batch.discount, batch.mask, now.values.detach())
        lately = now.log_prob.detach() - batch.log_prob  # log π/μ
        if config.correction == "vtrace":
            found = vtrace(*steps, lately.exp(), config.gae_lambda, config.rho_clip, config.c_clip)
        else:
            found = gae(*steps, config.gae_lambda)
        worst = as_array((found.advantage.abs() + torch.where(batch.mask, lately.abs(), 0.0)).amax(dim=0))
        if not np.isfinite(worst).all():
            raise not_finite(worst, self.updates)
        self._normalizer.measure_targets(found.target[batch.mask])
        return Aims(*found, now.values[:-1].detach())

    def loss(self, batch: Unrolls, now: Evaluated, aims: Aims) -> Tensor:
        """Surrogate + c_v·½(V − target)² − c_e·H, summed over the steps that may be learned from; unless the sum is
        wanted, over the number of all steps, so that steps too old make the step shorter (Sample Factory).

        With PopArt, A and V − target are in units of the targets' deviation."""
        config, unit = self._config, self._normalizer.values().deviation
        advantage = aims.advantage / unit
        if config.normalize_advantages:
            # what no value explains may be noise, which must not outweigh the entropy; it keeps its own size
            smallest = unexplained(aims.before, aims.target, batch.fresh) if config.normalize_returns else None
            advantage = normalized_advantage(advantage, batch.fresh, smallest)
        if config.surrogate == "clipped":
            surrogate = clipped_surrogate(self._ratio(batch, now), advantage, config.clip_ratio)
        else:
            surrogate = gradient_surrogate(now.log_prob, advantage, config.probability_floor)
        values = now.values[: len(batch.mask)]
        if config.value_clip:
            error = clipped_value_loss(values, aims.target, aims.before, config.value_clip)
        else:
            error = value_loss(values, aims.target)
        losses = surrogate + config.value_coefficient * error / unit.square() - config.entropy_coefficient * now.entropy
        total = torch.where(batch.fresh, losses, 0.0).sum()
        return total if config.summed_loss else total / batch.mask.sum().clamp(min=1)

    @staticmethod
    def _ratio(batch: Unrolls, now: Evaluated) -> Tensor:
        """π(a|s) / μ(a|s) of every step, [T, B]."""
        return (now.log_prob - batch.log_prob).clamp(max=LOG_RATIO_MAX).exp()

    def _metrics(self, batch: Unrolls, now: Evaluated) -> dict[str, float]:
        """Means over the steps: V, entropy, an estimate of KL(μ‖π), the share of clipped ratios, V-trace's ρ."""
        config, ratio = self._config, self._ratio(batch, now)
        values = now.values[: len(batch.mask)] * self._normalizer.unit
        means = {"value": values, "entropy": now.entropy, "kl": batch.log_prob - now.log_prob}
        if config.surrogate == "clipped":
            means["clipped"] = ((ratio - 1.0).abs() > config.clip_ratio).float()
        if config.correction == "vtrace":
            means["rho"] = ratio.clamp(max=config.rho_clip)
        return {name: float(values.detach()[batch.mask].mean()) for name, values in means.items()}

    def _of_steps(self, batch: Unrolls, now: Evaluated, aims: Aims) -> dict[str, float]:
        """What the inputs, the ratios and the values of the steps tell."""
        steps = batch.mask
        found = diagnostics.of_inputs(batch.observation, batch.reward[steps])
        found["effective_samples"] = diagnostics.effective_samples(self._ratio(batch, now).detach()[steps])
        return found | diagnostics.explained_variance(aims.before[steps], aims.target[steps])

    weights, load = trained_agent.weights, trained_agent.load
    state_dict, load_state_dict = trained_agent.state_dict, trained_agent.load_state_dict
    anneal, horizon = trained_agent.anneal, trained_agent.horizon


def _acting_spec(spec: EnvSpec, config: AgentConfig) -> EnvSpec:
    """``spec`` as the policy sees it.

    Raises:
        AgentError: there is no state for a central value, or nothing but it for the policy.
    """
    if not config.central_value:
        return spec
    seen = spec.without_state()
    if len(seen.observation) == len(spec.observation):
        raise AgentError(
            f"central_value: observations have no {GLOBAL_STATE}, the state of the environment that the value is to "
            "see: add --show-state (several agents), or an entry state to a Dict observation of your own"
        )
    if not seen.without_mask().observation:
        raise AgentError("central_value: observations have nothing but the state, and the policy does not see that")
    return seen
