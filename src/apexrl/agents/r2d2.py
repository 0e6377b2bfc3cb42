"""R2D2: Q-learning with a memory, from prioritized sequences (Kapturowski et al. 2019, ICLR)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from apexrl.agents import diagnostics, trained_agent
from apexrl.agents.bootstrap import traces
from apexrl.agents.decision import Decision
from apexrl.agents.discrete_actions import Choices
from apexrl.agents.layer_choice import layer_choice
from apexrl.agents.normalizer import Normalizer
from apexrl.agents.policy_ladder import PolicyLadder
from apexrl.agents.rng_state import RandomGenerator, acting_generator, seeded_layers
from apexrl.agents.sequence_batch import C, H, Sequences, items_time_first, sequences
from apexrl.agents.trained_network import Loss, Trained
from apexrl.agents.transition_batch import Observation, as_array, on_device
from apexrl.config import AgentConfig
from apexrl.errors import AgentError
from apexrl.losses import sequence_lambda_target, sequence_loss, sequence_priority, sequence_target, unscale
from apexrl.networks.memory import LSTMState
from apexrl.networks.memory import State as MemoryState
from apexrl.networks.recurrent import RecurrentQ
from apexrl.protocols import Acted, Arrays, Item, Sampled, State
from apexrl.spec import EnvSpec, Field


class R2D2:
    """Acts ε-greedily on the Q-values of an LSTM and learns them from sequences, double, dueling, n-step.

    A sequence brings the LSTM's state from when it was recorded. As that state is of older weights, the steps of the
    burn-in run first, in both networks and without gradient, and warm it up ("stored state with burn-in", section 3).
    With ``policies`` a sequence also brings which of them acted, and is learned from for that one, by its γ.

    Args:
        spec: the environment; its actions must be Discrete or MultiDiscrete.
        device: of PyTorch, ``"cpu"`` or ``"cuda…"``.
        seed: of the network's first weights and of exploration.

    Raises:
        AgentError: the actions are a box, or too many; a sequence would have no steps; or γ of several policies does
            not fall.
    """

    def __init__(self, spec: EnvSpec, config: AgentConfig, device: str = "cpu", seed: int = 0) -> None:
        if min(config.sequence_length, config.sequence_stride, config.recurrent_units) < 1 or config.burn_in < 0:
            raise AgentError(
                f"sequence_length {config.sequence_length}, sequence_stride {config.sequence_stride} and "
                f"recurrent_units {config.recurrent_units} must be at least 1, and burn_in {config.burn_in} at least 0"
            )
        self.item = Item("sequence", config.sequence_length, config.sequence_stride, config.burn_in)
        self._config = config
        self._device = torch.device(device)
        self._choices = Choices(spec, config.agent)
        self._rng = acting_generator(seed)
        self._policies = PolicyLadder(config, self._device)
        self._frames = (spec.stack,) if spec.stack > 1 else ()
        with seeded_layers(seed):
            network = RecurrentQ(
                self._policies.shown(spec),
                config.hidden,
                config.recurrent_units,
                config.dueling,
                config.image_units,
                config.network,
                layer_choice(config),
            )
        self._network = Trained("", network.to(self._device), config, target=True, target_acts=config.target_acts)
        self._normalizer = Normalizer(spec, config, self._device)
        self.networks: dict[str, Trained[Any]] = {"q": self._network, **self._normalizer.networks}
        self.generators: dict[str, RandomGenerator] = {"rng": self._rng}
        self._stacked = spec.stack > 1
        self.updates = 0  # learner updates made

    @property
    def step_spec(self) -> dict[str, Field]:
        """Every step records the (rescaled) value of its action and the greatest value of its observation, for
        priorities; every sequence the state before its first step, burn-in included."""
        state = Field((self._config.recurrent_units,), "float32", per_item=True)
        return {
            "q": Field((), "float32", sampled=False),
            "value": Field((), "float32", sampled=False, windowed=True),
            H: state,
            C: state,
            **self._policies.fields,
        }

    # Acting

    def act(self, observations: Arrays, state: State, exploration: NDArray[np.float32], greedy: bool = False) -> Acted:
        """ε-greedy actions, int64 [B]. ``exploration`` is ε of each environment, [B]; ``state`` [B, units] each."""
        rows = len(exploration)
        if state is None:
            zeros = np.zeros((rows, self._config.recurrent_units), np.float32)
            state = {H: zeros, C: zeros}
        policy = self._policies.acting(state, rows, self._rng, greedy)
        with torch.no_grad():
            before = on_device({**state, **policy}, self._device)
            seen = self._normalizer.observation(on_device(observations, self._device))
            seen = self._policies.told(seen, before, self._frames)
            values, after = self._network.network.step(seen, LSTMState(before[H], before[C]))
        q, h, c = (tensor.cpu().numpy() for tensor in (self._choices.masks.values(values, seen), *after))
        actions = q.argmax(axis=1)
        value = q[np.arange(rows), actions]
        if not greedy:
            actions = self._choices.epsilon_greedy(actions, exploration, self._rng, observations)
        extras = {"q": q[np.arange(rows), actions], "value": value, H: state[H], C: state[C]}
        return Acted(self._choices.to_env(actions), {**extras, **policy}, {H: h, C: c, **policy})

    def decide(self, observation: Observation, state: Mapping[str, Tensor]) -> Decision:
        """The greedy action of raw observations, in PyTorch alone; see ``Decides``."""
        first = dict.fromkeys(self._policies.fields, torch.ones_like(state[H][:, :1]))
        seen = self._policies.told(self._normalizer.observation(observation), first, self._frames)
        q, after = self._network.network.step(seen, LSTMState(state[H], state[C]))
        q = self._choices.masks.values(q, observation)
        return Decision(self._choices.to_env_tensor(q.argmax(dim=1)), {H: after.h, C: after.c})

    def expected_returns(self, observations: Arrays) -> NDArray[np.float32]:
        """max_a Q(s, a) [B] of episodes' first observations, no longer rescaled."""
        rows = len(next(iter(observations.values())))
        value = self.act(observations, None, np.zeros(rows, np.float32), greedy=True).extras["value"]
        return as_array(unscale(torch.from_numpy(value), self._config.rescaling_eps) * self._normalizer.unit)

    def priorities(self, items: Arrays) -> NDArray[np.float32]:
        """η·max|δ| + (1 − η)·mean|δ| of N sequences, [N], from the values recorded while acting.

        As ``update`` computes it, but that the acting network stands for both, and the states are those at the time.
        """
        config = self._config
        reward, discount, mask, q, value = items_time_first(
            items, ("reward", "discount", "mask", "q", "value"), config.burn_in
        )
        if self._stacked:
            value = value[:, :, -1]  # the replay stacks it as it does observations
        reward = self._normalizer.reward(reward)
        acted = {name: torch.from_numpy(items[name]) for name in self._policies.fields}
        discount = self._policies.discount(discount, acted)
        target = self._target(reward, discount, mask, value, q == value[: len(q)])
        return as_array(sequence_priority(target - q, mask, config.priority_eta))

    # Learning

    def prepare(self, batch: Sampled) -> Sequences:
        """Hand a batch over to the device, time first."""
        return sequences(batch, self._config.burn_in, (H, C, *self._policies.fields), self._device)

    def loss(self, batch: Sequences) -> Loss:
        """mean(w·Σ_t L(y_t − Q(s_t, a_t))) with ``_target`` for y; values are rescaled (section 2.3)."""
        config, network = self._config, self._network
        q = self._values(network.network, batch)  # [L + 1, B, n]
        with torch.no_grad():
            next_q = self._values(network.target, batch)
        chosen = (q.detach() if config.double else next_q).argmax(dim=2, keepdim=True)
        bootstrap = next_q.gather(2, chosen).squeeze(2)  # [L + 1, B]
        action = self._choices.index(batch.action.flatten(0, 1)).view(batch.reward.shape)
        greedy = action == chosen[:-1].squeeze(2)
        discount = self._policies.discount(batch.discount, batch.state)
        target = self._target(batch.reward, discount, batch.mask, bootstrap, greedy)
        taken = q[:-1].gather(2, action.unsqueeze(2)).squeeze(2)  # [L, B]
        delta = torch.where(batch.mask, target - taken, 0.0)
        loss = sequence_loss(torch.where(batch.fresh, delta, 0.0), batch.weights, config.huber)
        return Loss(loss, sequence_priority(delta.detach(), batch.mask, config.priority_eta), taken)

    def _target(self, reward: Tensor, discount: Tensor, mask: Tensor, bootstrap: Tensor, greedy: Tensor) -> Tensor:
        """y [L, B], as ``multi_step`` says: n-step returns, or λ-returns, in which ``greedy`` [L, B] says which actions
        are the best ones."""
        config = self._config
        if config.multi_step == "n_step":
            return sequence_target(reward, discount, mask, bootstrap, config.n_step, config.rescaling_eps)
        return sequence_lambda_target(reward, discount, mask, bootstrap, traces(config, greedy), config.rescaling_eps)

    def _scaled(self, batch: Sequences) -> Sequences:
        return self._normalizer.sequences(batch)

    def _measure(self, q: Tensor, batch: Sequences) -> diagnostics.Metrics:
        return {"q": float(unscale(q, self._config.rescaling_eps)[batch.mask].mean()) * self._normalizer.unit}

    _differentiated = trained_agent.differentiated

    def _values(self, network: RecurrentQ, batch: Sequences) -> Tensor:
        """(Rescaled) Q of the steps that are trained on and of the observation behind them, [L + 1, B, n]."""
        warm = self._config.burn_in
        warming, observation = (
            self._policies.told(seen, batch.state, (steps, *self._frames))
            for seen, steps in ((batch.warming, warm), (batch.observation, len(batch.reward) + 1))
        )
        state: MemoryState = LSTMState(batch.state[H], batch.state[C])
        if warm:
            resets = [step for step in batch.resets if step < warm]
            with torch.no_grad():
                _, state = network.unroll(warming, state, batch.first[:warm], resets)
        resets = [step - warm for step in batch.resets if step >= warm]
        outputs, _ = network.unroll(observation, state, batch.first[warm:], resets)
        return self._choices.masks.unrolled(network.head(outputs), batch.observation)

    gradients, apply = trained_agent.gradients, trained_agent.apply
    update, weights, load = trained_agent.update, trained_agent.weights, trained_agent.load
    state_dict, load_state_dict = trained_agent.state_dict, trained_agent.load_state_dict
    anneal = trained_agent.anneal
