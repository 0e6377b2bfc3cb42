"""PQN: Q-learning from unrolls, without replay and target network (Gallici et al. 2024, arXiv 2407.04811)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from apexrl.agents import diagnostics, trained_agent, unroll_updates
from apexrl.agents.bootstrap import traces
from apexrl.agents.decision import Decision
from apexrl.agents.discrete_actions import Choices
from apexrl.agents.horizon import gamma_share
from apexrl.agents.layer_choice import layer_choice
from apexrl.agents.normalizer import Normalizer
from apexrl.agents.rng_state import RandomGenerator, acting_generator, seeded_layers
from apexrl.agents.trained_network import Gradients, Trained, not_finite
from apexrl.agents.transition_batch import Observation, as_array, on_device
from apexrl.agents.unroll_batch import Unrolls, unrolls
from apexrl.config import AgentConfig
from apexrl.errors import AgentError
from apexrl.losses import huber_loss, lambda_return
from apexrl.networks import QNetwork
from apexrl.protocols import Acted, Arrays, Item, Sampled, State
from apexrl.spec import EnvSpec, Field

GROUP = "q"


class Aims(NamedTuple):
    """Of one update, [T, B] and without gradient."""

    target: Tensor  # of Q(s, a)


class PQN:
    """Acts ε-greedily on Q-values, and learns them from unrolls, each of which is learned from once.

    Layer normalisation holds values in bounds where others need a target network (section 3). λ-returns are made of the
    learner's own values of an unroll, once before the gradient steps of an update. They are exact where the policy that
    acted is the learner's greedy one; where unrolls are older, or ε is large, ``multi_step`` retrace ends them before
    actions that are not greedy.

    Args:
        spec: the environment; its actions must be Discrete or MultiDiscrete.
        device: of PyTorch, ``"cpu"`` or ``"cuda…"``.
        seed: of the network's first weights, of exploration, and of the shuffling of minibatches.

    Raises:
        AgentError: the actions are a box, or too many; returns are of n steps; an unroll would have no steps.
    """

    def __init__(self, spec: EnvSpec, config: AgentConfig, device: str = "cpu", seed: int = 0) -> None:
        if min(config.unroll_length, config.epochs, config.minibatches) < 1:
            raise AgentError(
                f"unroll_length {config.unroll_length}, epochs {config.epochs} and minibatches {config.minibatches} "
                "must be at least 1"
            )
        if config.multi_step == "n_step":
            raise AgentError(f"{config.agent} learns λ-returns of its unrolls: set --multi-step to peng or retrace")
        self.item = Item("unroll", config.unroll_length)
        self._config = config
        self._device = torch.device(device)
        self._choices = Choices(spec, config.agent)
        self._rng = acting_generator(seed)
        self._remembers = False
        with seeded_layers(seed):
            network = QNetwork(
                spec,
                config.hidden,
                config.dueling,
                image_units=config.image_units,
                network=config.network,
                choice=layer_choice(config),
            ).to(self._device)
        self._network = Trained("", network, config)
        self._normalizer = Normalizer(spec, config, self._device)
        self.networks: dict[str, Trained[Any]] = {GROUP: self._network, **self._normalizer.networks}
        self.generators: dict[str, RandomGenerator] = {"rng": self._rng}
        self.updates = 0  # learner updates made

    @property
    def step_spec(self) -> dict[str, Field]:
        """A step records nothing beside observation and action: targets are of the learner's values."""
        return {}

    # Acting

    def act(self, observations: Arrays, state: State, exploration: NDArray[np.float32], greedy: bool = False) -> Acted:
        """ε-greedy actions, int64 [B] or [B, k]. ``exploration`` is ε of each environment, [B]."""
        actions = self._values(observations).argmax(dim=1).cpu().numpy()
        if not greedy:
            actions = self._choices.epsilon_greedy(actions, exploration, self._rng, observations)
        return Acted(self._choices.to_env(actions), {}, state)

    def decide(self, observation: Observation, state: Mapping[str, Tensor]) -> Decision:
        """The greedy action of raw observations, in PyTorch alone; see ``Decides``."""
        q = self._network.network(self._normalizer.observation(observation))
        q = self._choices.masks.values(q, observation)
        return Decision(self._choices.to_env_tensor(q.argmax(dim=1)), {})

    def expected_returns(self, observations: Arrays) -> NDArray[np.float32]:
        """max_a Q(s, a) [B] of episodes' first observations."""
        return as_array(self._values(observations).amax(dim=1) * self._normalizer.unit)

    @torch.no_grad()
    def _values(self, observations: Arrays) -> Tensor:
        """Q [B, n]."""
        seen = self._normalizer.observation(on_device(observations, self._device))
        return self._choices.masks.values(self._network.network(seen), seen)

    # Learning

    def prepare(self, batch: Sampled) -> Unrolls:
        """Hand a batch over to the device, time first."""
        return unrolls(batch, "action", (), self._device, gamma_share(self._config, self.updates))

    gradients, apply = unroll_updates.gradients, unroll_updates.apply
    update, steps = unroll_updates.update, unroll_updates.steps

    def aims(self, batch: Unrolls) -> Aims:
        """λ-returns of a scaled batch, by the network as it is.

        Raises:
            NonFiniteError: one of them is NaN or infinite; the message names the unrolls.
        """
        return self._aims(batch, self._q(batch))

    def _aims(self, batch: Unrolls, q: Tensor) -> Aims:
        """``aims``, of Q [T + 1, B, n]."""
        values, best = q.max(dim=2)
        trace = traces(self._config, self._index(batch) == best[:-1])
        target = lambda_return(batch.reward, batch.discount, batch.mask, values, trace)
        worst = as_array(torch.where(batch.mask, target.abs(), 0.0).amax(dim=0))
        if not np.isfinite(worst).all():
            raise not_finite(worst, self.updates)
        return Aims(target)

    def part_gradients(self, batch: Unrolls, aims: Aims | None, measured: bool) -> Gradients:
        """``gradients`` of a scaled batch, or of steps of it, with targets as given, or this pass's; with metrics where
        ``measured``."""
        network = self._network
        with diagnostics.DeadUnits(measured) as units:
            values = self._q(batch)
        aims = self._aims(batch, values.detach()) if aims is None else aims
        q = values[: len(batch.mask)].gather(2, self._index(batch).unsqueeze(2)).squeeze(2)
        loss = self.loss(batch, q, aims)
        network.differentiate(loss)
        gradient_norm = network.clip(self.updates)
        metrics: dict[str, float] = {}
        if measured:
            taken = batch.mask
            metrics = {
                "loss": float(loss.detach()),
                "q": float(q.detach()[taken].mean()) * self._normalizer.unit,
                "gradient_norm": gradient_norm,
                **diagnostics.of_networks(self.networks),
                **units.share(),
                **diagnostics.of_inputs(batch.observation, batch.reward[taken]),
                **diagnostics.explained_variance(q.detach()[taken], aims.target[taken]),
            }
        return Gradients({GROUP: network.gradient}, None, metrics)

    def loss(self, batch: Unrolls, q: Tensor, aims: Aims) -> Tensor:
        """mean L(target − Q(s, a)), L being ½δ² or Huber's, over the steps; those too old to be learned from count in
        their number alone (Sample Factory).

        Args:
            q: of the actions taken, [T, B].
        """
        losses = huber_loss(aims.target - q, self._config.huber)
        return torch.where(batch.fresh, losses, 0.0).sum() / batch.mask.sum().clamp(min=1)

    def step(self, groups: Mapping[str, Tensor]) -> None:
        """One step of the optimizer, which alone is no update."""
        self._network.step(groups[GROUP])
        self._normalizer.step(groups)

    def _q(self, batch: Unrolls) -> Tensor:
        """Q of every observation of a batch, [T + 1, B, n]; of steps alone [T, B, n]."""
        rows, steps = next(iter(batch.observation.values())).shape[:2]
        flat = {name: value.reshape(-1, *value.shape[2:]) for name, value in batch.observation.items()}
        q = self._choices.masks.values(self._network.network(flat), flat)
        return q.view(rows, steps, -1).transpose(0, 1)

    def _index(self, batch: Unrolls) -> Tensor:
        """The actions taken as numbers, int64 [T, B]."""
        return self._choices.index(batch.action.flatten(0, 1)).view(batch.mask.shape)

    weights, load = trained_agent.weights, trained_agent.load
    state_dict, load_state_dict = trained_agent.state_dict, trained_agent.load_state_dict
    anneal, horizon = trained_agent.anneal, trained_agent.horizon
