"""DQN with what Ape-X adds: double, dueling, n-step, prioritized (Horgan et al. 2018, section 3.1)."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from math import isfinite
from typing import NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from apexrl.agents.optimizer import Optimizer, make_optimizer
from apexrl.agents.rng import pack_generator, unpack_generator
from apexrl.config import AgentConfig
from apexrl.errors import AgentError, NonFiniteError, SnapshotError
from apexrl.losses import q_target, td_error, td_gradient, td_loss
from apexrl.networks import Differentiable, FlatParameters, QNetwork, differentiable
from apexrl.protocols import Acted, Arrays, Learned, Sampled, State
from apexrl.spec import Array, EnvSpec, Field, split_observation

METRICS_PERIOD_UPDATES = 50  # metrics cost about a tenth of a small update


class Prepared(NamedTuple):
    """A batch on the device; B rows."""

    observation: dict[str, Tensor]  # name -> [B, (stack,) *shape]
    next_observation: dict[str, Tensor]
    action: Tensor  # [B] int64
    reward: Tensor  # [B] float32, n-step return without its bootstrap
    discount: Tensor  # [B] float32, γ^m · (1 − terminated)
    weights: Tensor  # [B] float32, importance weights


class Gradients(NamedTuple):
    groups: dict[str, Tensor]  # group name -> flat gradient, clipped; holds until the next call
    priorities: NDArray[np.float32]  # [B] |δ|
    metrics: dict[str, float]


class DQN:
    """Acts ε-greedily on Q-values and learns them from prioritized n-step transitions.

    Args:
        spec: the environment; actions must be discrete.
        config: the learning rule.
        device: of PyTorch, ``"cpu"`` or ``"cuda…"``.
        seed: of the network's first weights and of exploration.

    Raises:
        AgentError: the actions are not discrete.
    """

    def __init__(self, spec: EnvSpec, config: AgentConfig, device: str = "cpu", seed: int = 0) -> None:
        if not spec.action.discrete:
            raise AgentError(
                f"dqn chooses among discrete actions, but this environment takes a box of shape {spec.action.shape}; "
                "use an environment with a Discrete action space"
            )
        self._config = config
        self._device = torch.device(device)
        self._actions = spec.action.n
        self._rng = np.random.default_rng(np.random.SeedSequence([seed, 1]))
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)  # the CPU's alone, where layers are made
            self._network = QNetwork(spec, config.hidden, config.dueling).to(self._device)
        self._parameters = FlatParameters(self._network)
        self._online = differentiable(self._network)
        self._learning: _Learning | None = None  # actors never need it

    @property
    def step_spec(self) -> dict[str, Field]:
        """Every step records the Q-values that chose its action; priorities are computed from them."""
        return {"q": Field((self._actions,), "float32", sampled=False)}

    @property
    def updates(self) -> int:
        """Learner updates made."""
        return self._learning.updates if self._learning else 0

    # Acting

    def act(self, observations: Arrays, state: State, exploration: NDArray[np.float32], greedy: bool = False) -> Acted:
        """ε-greedy actions, int64 [B], with their Q-values. ``exploration`` is ε of each environment, [B]."""
        q = self._online.values({name: self._to_device(value) for name, value in observations.items()}).cpu().numpy()
        actions = q.argmax(axis=1)
        if not greedy:
            rows = len(actions)
            explore = self._rng.random(rows, np.float32) < exploration
            actions = np.where(explore, self._rng.integers(self._actions, size=rows), actions)
        return Acted(actions, {"q": q}, state)

    def priorities(self, items: Arrays) -> NDArray[np.float32]:
        """|R + discount·max_a Q(s', a) − Q(s, action)|, [N], from the Q-values recorded while acting.

        Horgan et al. 2018, section 3: no second forward pass.
        """
        reward, discount = (cast("NDArray[np.float32]", items[name]) for name in ("reward", "discount"))
        q, next_q = (cast("NDArray[np.float32]", items[name]) for name in ("q", "next_q"))
        action = cast("NDArray[np.int64]", items["action"])
        # A terminated window has no later step: whatever stands there must not count, even if it is not finite.
        later = np.where(discount > 0, next_q.max(axis=1), np.float32(0))
        delta: NDArray[np.float32] = reward + discount * later - q[np.arange(len(action)), action]
        return np.abs(delta)

    # Learning

    def prepare(self, batch: Sampled) -> Prepared:
        """Hand a batch over to the device; asynchronous on CUDA, no copy on the CPU."""
        data = batch.data
        return Prepared(
            {name: self._to_device(value) for name, value in split_observation(data).items()},
            {name: self._to_device(value) for name, value in split_observation(data, "next_").items()},
            self._to_device(data["action"]),
            self._to_device(data["reward"]),
            self._to_device(data["discount"]),
            self._to_device(batch.weights),
        )

    def gradients(self, batch: Prepared) -> Gradients:
        """The clipped gradient of the TD loss, as group ``q``, and |δ| of every row.

        Raises:
            NonFiniteError: δ or the gradient is NaN or infinite; parameters are as before.
        """
        learning = self._learner()
        config = self._config
        q, next_q_online = self._online.forward(batch.observation, batch.next_observation if config.double else None)
        next_q = learning.target.values(batch.next_observation)
        target = q_target(batch.reward, batch.discount, next_q, next_q_online)
        delta = td_error(q, batch.action, target)
        self._online.backward(td_gradient(delta, batch.action, batch.weights, self._actions, config.huber))
        gradient_norm = float(torch.linalg.vector_norm(learning.gradient))
        priorities = delta.abs().cpu().numpy()
        if not (isfinite(gradient_norm) and np.isfinite(priorities).all()):
            raise _not_finite(priorities, learning.updates)
        if 0.0 < config.gradient_clip < gradient_norm:
            learning.gradient.mul_(config.gradient_clip / gradient_norm)
        metrics: dict[str, float] = {}
        if learning.updates % METRICS_PERIOD_UPDATES == 0:
            metrics = {
                "loss": float(td_loss(delta, batch.weights, config.huber)),
                "td_error": float(priorities.mean()),
                "q": float(q.mean()),
                "gradient_norm": gradient_norm,
            }
        return Gradients({"q": learning.gradient}, priorities, metrics)

    def apply(self, groups: Mapping[str, Tensor]) -> None:
        """One step of the optimizer; every ``target_period_updates`` of them the online network becomes the target."""
        learning = self._learner()
        learning.optimizer.step(self._parameters.vector, groups["q"])
        self._online.refresh()
        learning.updates += 1
        if learning.updates % self._config.target_period_updates == 0:
            learning.copy_target(self._parameters)

    def update(self, prepared: Prepared) -> Learned:
        """One learner update: ``gradients`` and ``apply``.

        Raises:
            NonFiniteError: as ``gradients``; nothing was changed.
        """
        groups, priorities, metrics = self.gradients(prepared)
        self.apply(groups)
        return Learned(priorities, metrics)

    # Weights and state

    def weights(self) -> dict[str, Array]:
        """The online network: parameter name -> float32 copy."""
        return self._parameters.arrays()

    def load(self, weights: Arrays) -> None:
        """Take an online network.

        Raises:
            SpecError: the names or shapes are of another network.
        """
        self._parameters.load(weights)
        self._online.refresh()

    def state_dict(self) -> dict[str, Array]:
        """Parameters, target, optimizer, counters and RNG as flat named arrays."""
        learning = self._learner()
        parts = {"online": self._parameters.vector, "target": learning.target_parameters.vector}
        parts |= {f"optimizer/{name}": vector for name, vector in learning.optimizer.state.items()}
        state = {
            f"{part}/{name}": array
            for part, vector in parts.items()
            for name, array in self._parameters.arrays(vector).items()
        }
        state["optimizer/steps"] = learning.optimizer.steps.cpu().numpy().copy()
        state["updates"] = np.array(learning.updates, np.int64)
        state["rng"] = pack_generator(self._rng)
        return state

    def load_state_dict(self, state: Arrays) -> None:
        """Go on exactly where ``state_dict`` was taken.

        Raises:
            SnapshotError: something is missing: the state is of another agent or optimizer.
            SpecError: arrays are of another network.
        """
        learning = self._learner()
        optimizer = learning.optimizer
        parts = {"online": self._parameters.vector, "target": learning.target_parameters.vector}
        parts |= {f"optimizer/{name}": vector for name, vector in optimizer.state.items()}
        for part, vector in parts.items():
            arrays = {name[len(part) + 1 :]: array for name, array in state.items() if name.startswith(part + "/")}
            if not arrays:
                raise SnapshotError(f"the state holds no {part!r}: it is of another agent or optimizer than this dqn")
            self._parameters.load(arrays, vector)
        optimizer.steps.fill_(float(state["optimizer/steps"]))
        learning.updates = int(state["updates"])
        self._rng = unpack_generator(state["rng"])
        self._online.refresh()
        learning.target.refresh()

    def _learner(self) -> _Learning:
        if self._learning is None:
            self._learning = _Learning(self._network, self._parameters, self._config)
        return self._learning

    def _to_device(self, array: Array) -> Tensor:
        tensor = torch.from_numpy(array)
        if self._device.type == "cuda":
            return tensor.pin_memory().to(self._device, non_blocking=True)
        return tensor.to(self._device)


class _Learning:
    """What only the learner holds: gradient, target network, optimizer."""

    def __init__(self, network: QNetwork, parameters: FlatParameters, config: AgentConfig) -> None:
        self.updates = 0
        self.optimizer: Optimizer = make_optimizer(config, parameters.vector)
        target = deepcopy(network).requires_grad_(False)
        self.target_parameters = FlatParameters(target)
        self.target: Differentiable = differentiable(target)
        self.gradient = parameters.attach_gradient()

    def copy_target(self, parameters: FlatParameters) -> None:
        self.target_parameters.vector.copy_(parameters.vector)
        self.target.refresh()


def _not_finite(priorities: NDArray[np.float32], updates: int) -> NonFiniteError:
    rows = np.flatnonzero(~np.isfinite(priorities))
    where = f"the TD error of batch rows {rows[:8].tolist()}" if len(rows) else "the gradient"
    return NonFiniteError(
        f"update {updates + 1}: {where} is NaN or infinite; the parameters were left as they were. Look for non-finite "
        "observations or rewards, or lower learning_rate"
    )
