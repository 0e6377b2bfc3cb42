"""A network in training: flat parameters, gradient, optimizer and target.

An agent holds one for each network that learns. Gradient, optimizer and target are made at first use, so that actors
never hold them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from functools import cached_property
from math import hypot, isfinite
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from apexrl.agents.diagnostics import GradientRecord
from apexrl.agents.optimizer import Optimizer, make_optimizer
from apexrl.config import AgentConfig
from apexrl.errors import AgentError, NonFiniteError, SnapshotError
from apexrl.networks import FlatParameters
from apexrl.networks.custom_encoder import draws_of
from apexrl.spec import Array

METRICS_PERIOD_UPDATES = 50  # metrics wait for the device, and cost about a tenth of a small update

N = TypeVar("N", bound=nn.Module)
R = TypeVar("R")


class Loss(NamedTuple):
    """The result of an agent's ``loss`` for a batch."""

    loss: Tensor  # scalar, to be minimised
    priorities: Tensor  # [B] |δ| of every row, before its importance weight
    q: Tensor  # the Q-values that the loss is of, of any shape


class Gradients(NamedTuple):
    """The result of an agent's ``gradients``, which its ``apply`` takes."""

    groups: dict[str, Tensor]  # group name -> flat gradient, clipped unless it ``averages``; holds until the next call
    priorities: NDArray[np.float32] | None  # [B] |δ|; None: of unrolls, which have none
    metrics: dict[str, float]


class Trained(Generic[N]):
    """A module in training.

    Args:
        name: begins the names of its arrays: ``critic`` gives ``critic/online/…``; empty: ``online/…``.
        network: on its final device; its parameters are moved into one vector.
        config: says the optimizer.
        learning_rate: step size; 0: that of ``config``.
        target: a target network follows it.
        target_acts: that is what actors are given.
        apart: begin of the parameters' names whose gradient is clipped for itself; they are the last.
    """

    compressible = True
    """Whether its gradient may lose digits or small values on its way to other learners."""
    by_slices = True
    """Whether each part of the parameters is changed by its part of a gradient alone, wherever that is applied."""

    def __init__(
        self,
        name: str,
        network: N,
        config: AgentConfig,
        learning_rate: float = 0.0,
        target: bool = False,
        target_acts: bool = False,
        apart: str = "",
    ) -> None:
        self.network = network
        self.parameters = FlatParameters(network)
        self._prefix = f"{name}/" if name else ""
        self._config = config
        self._learning_rate, self._left = learning_rate or config.learning_rate, 1.0
        self._has_target, self._target_acts = target, target_acts
        self.record = GradientRecord()
        starts = [where.start for one, where in self.parameters.slices.items() if apart and one.startswith(apart)]
        self._cuts = [min(starts)] if starts else []  # where the gradient is cut into parts that are clipped
        self.averages = False
        """Whether gradients are averaged with those of other learners, and the average is clipped."""
        self.clips_average = False
        """Whether it is to be clipped: the newest gradient was checked by ``clip``."""

    @cached_property
    def gradient(self) -> Tensor:
        """float32 [size], of which the parameters' ``.grad`` are views."""
        return self.parameters.attach_gradient()

    def place_gradient(self, vector: Tensor) -> None:
        """From now on ``gradient`` is ``vector``, float32 [size], on the parameters' device."""
        self.gradient = self.parameters.attach_gradient(vector)

    @cached_property
    def optimizer(self) -> Optimizer:
        made = self.optimizer_for(self.parameters.vector)
        made.learning_rate = self.learning_rate
        return made

    @property
    def learning_rate(self) -> float:
        """Learning rate of the next step. Asking makes no optimizer."""
        return self._left * self._learning_rate

    def optimizer_for(self, vector: Tensor, start: int = 0) -> Optimizer:
        """An optimizer like its own for ``vector``, a part of the parameters that another process owns, which begins at
        value ``start`` of them."""
        decayed = self._decayed()[start : start + len(vector)] if self._config.optimizer == "adamw" else None
        return make_optimizer(self._config, vector, self._learning_rate, decayed)

    def _decayed(self) -> Tensor:
        """What weight decay is for, bool [size]: weights that learn; no biases, no gains."""
        decayed = torch.zeros_like(self.parameters.vector, dtype=torch.bool)
        for name, parameter in self.network.named_parameters():
            if parameter.requires_grad and parameter.ndim > 1 and "weight" in name:
                decayed[self.parameters.slices[name]] = True
        return decayed

    @property
    def target(self) -> N:
        """The slowly following copy, at first equal to the network. Its parameters take no gradient."""
        return self._following[0]

    @property
    def target_parameters(self) -> FlatParameters:
        return self._following[1]

    def target_vectors(self) -> tuple[Tensor, ...]:
        """The target's parameters, float32 [size], if it has a target."""
        return (self.target_parameters.vector,) if self._has_target else ()

    @cached_property
    def _following(self) -> tuple[N, FlatParameters]:
        target = deepcopy(self.network).requires_grad_(False)
        for parameter in target.parameters():
            parameter.grad = None
        return target, FlatParameters(target)

    @cached_property
    def _each(self) -> list[nn.Parameter]:
        """The network's parameters, which PyTorch looks for in every module."""
        return list(self.network.parameters())

    def differentiate(self, loss: Tensor) -> None:
        """Overwrite ``gradient`` with ∂loss/∂parameters; of frozen ones it is 0, and no optimizer moves them.

        Raises:
            AgentError: the loss is no scalar.
        """
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            raise AgentError(f"an agent's loss must be a scalar tensor, and it is {_spelled(loss)}")
        self.gradient.zero_()
        learning = [parameter for parameter in self._each if parameter.requires_grad]
        loss.backward(inputs=learning)  # type: ignore[no-untyped-call]

    def clip(self, updates: int, priorities: NDArray[np.float32] | None = None) -> float:
        """Scale the gradient to a global L2 norm of at most ``gradient_clip`` (0: leave it); returns the norm before.
        A part that is clipped for itself has that bound for itself. With ``averages`` it is checked alone, and the
        average is scaled.

        Args:
            updates: made so far, for the message.
            priorities: float32 [B], checked too.

        Raises:
            NonFiniteError: the gradient, or the priority of a row, is NaN or infinite. Nothing was changed.
        """
        norms = [float(torch.linalg.vector_norm(part)) for part in self._clipped_parts(self.gradient)]
        norm = hypot(*norms)
        if not isfinite(norm) or (priorities is not None and not np.isfinite(priorities).all()):
            raise not_finite(priorities, updates)
        self.clips_average = self.averages
        if not self.averages:
            self._scale(self.gradient, norms)
        return norm

    def clip_average(self, gradient: Tensor) -> Tensor:
        """``gradient``, the average of several learners', scaled as ``clip`` would have scaled this learner's."""
        self._scale(gradient, [float(torch.linalg.vector_norm(part)) for part in self._clipped_parts(gradient)])
        return gradient

    def _clipped_parts(self, gradient: Tensor) -> tuple[Tensor, ...]:
        return gradient.tensor_split(self._cuts) if self._cuts else (gradient,)

    def _scale(self, gradient: Tensor, norms: Sequence[float]) -> None:
        most = self._config.gradient_clip
        self.record.note(max(norms), most)
        for part, size in zip(self._clipped_parts(gradient), norms, strict=True):
            if 0.0 < most < size:
                part.mul_(most / size)

    def step(self, gradient: Tensor | None = None) -> None:
        """One step of the optimizer along ``gradient``, or along its own."""
        before = self.record.before_step(self.parameters.vector)
        self.optimizer.step(self.parameters.vector, self.gradient if gradient is None else gradient)
        self.record.after_step(before, self.parameters.vector)

    def anneal(self, left: float) -> None:
        """From now on steps are ``left`` times as large as those of the configuration, 0 … 1."""
        self._left = left
        if "optimizer" in self.__dict__:
            self.optimizer.learning_rate = self.learning_rate

    def follow(self, updates: int) -> bool:
        """Let the target follow, as ``polyak`` and ``target_period_updates`` say, after that many updates. False: it
        stayed as it was, or there is none."""
        if not self._has_target:
            return False
        if self._config.polyak:
            self.target_parameters.vector.lerp_(self.parameters.vector, self._config.polyak)
            return True
        due = updates % self._config.target_period_updates == 0
        if due:
            self.target_parameters.vector.copy_(self.parameters.vector)
        return due

    def weights(self) -> dict[str, Array]:
        """The network's parameters by name, copied; where the target acts its, under the same names."""
        acting = self.target_parameters if self._target_acts else self.parameters
        return {self._prefix + name: array for name, array in acting.arrays().items()}

    def load(self, weights: Mapping[str, Array]) -> None:
        """Take parameters as ``weights`` gives them; others' names are passed over.

        Raises:
            SpecError: they are of another network.
        """
        own = self._own(weights, self._prefix)
        if not self._prefix:
            own = {name: array for name, array in own.items() if "/" not in name}
        self.parameters.load(own)

    def vectors(self) -> dict[str, Tensor]:
        """All that an update changes, no copies: ``online``, ``target``, ``optimizer/<name>``, each float32 [size], and
        ``optimizer/steps``, float32 [1]."""
        return self._parts() | {"optimizer/steps": self.optimizer.steps.view(1)}

    def bind(self, vectors: Mapping[str, Tensor]) -> None:
        """From now on live in ``vectors``, some or all of those that ``vectors()`` names, with the values that they
        hold: whoever else has them sees every update, and this one theirs."""
        for name, vector in vectors.items():
            if name == "online":
                self.parameters.bind(vector)
            elif name == "target":
                self.target_parameters.bind(vector)
            elif name == "optimizer/steps":
                self.optimizer.steps = vector[0]
            else:
                self.optimizer.state[name.removeprefix("optimizer/")] = vector

    def state_dict(self) -> dict[str, Array]:
        """Parameters, target, optimizer, and what encoders of one's own draw next, as flat named arrays."""
        state = {
            f"{self._prefix}{part}/{name}": array
            for part, vector in self._parts().items()
            for name, array in self.parameters.arrays(vector).items()
        }
        state[f"{self._prefix}optimizer/steps"] = self.optimizer.steps.cpu().numpy().copy()
        if draws := draws_of(self.network):
            state[f"{self._prefix}draws"] = np.array([(one.seed, one.passes) for one in draws], np.int64)
        return state

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Go on exactly where ``state_dict`` was taken.

        Raises:
            SnapshotError: something is missing: the state is of another agent or optimizer.
            SpecError: arrays are of another network.
        """
        for part, vector in self._parts().items():
            arrays = self._own(state, f"{self._prefix}{part}/")
            if not arrays:
                raise SnapshotError(
                    f"the state holds no {self._prefix + part!r}: it is of another agent or optimizer than this one"
                )
            self.parameters.load(arrays, vector)
        self.optimizer.steps.fill_(float(held(state, f"{self._prefix}optimizer/steps")))
        if draws := draws_of(self.network):
            for one, (seed, passes) in zip(draws, held(state, f"{self._prefix}draws").tolist(), strict=True):
                one.seed, one.passes = seed, passes

    def _parts(self) -> dict[str, Tensor]:
        parts = {"online": self.parameters.vector}
        if self._has_target:
            parts["target"] = self.target_parameters.vector
        return parts | {f"optimizer/{name}": vector for name, vector in self.optimizer.state.items()}

    @staticmethod
    def _own(arrays: Mapping[str, Array], prefix: str) -> dict[str, Array]:
        return {name[len(prefix) :]: array for name, array in arrays.items() if name.startswith(prefix)}


def as_returned(kind: type[R], found: Any, method: str) -> R:
    """What an agent's ``method`` returned, a NamedTuple ``kind``.

    Raises:
        AgentError: it is something else; the message names the fields.
    """
    if not isinstance(found, kind):
        fields = ", ".join(kind._fields)  # type: ignore[attr-defined]
        raise AgentError(
            f"an agent's {method} must return {kind.__name__}({fields}) of {kind.__module__}, not {_spelled(found)}"
        )
    return found


def _spelled(value: Any) -> str:
    """A value that somebody else has returned, for a message."""
    if isinstance(value, Tensor):
        return f"a tensor of shape {list(value.shape)}"
    return "None" if value is None else f"a value of type {type(value).__name__}"


def held(state: Mapping[str, Array], name: str) -> Array:
    """An array of a saved state.

    Raises:
        SnapshotError: it is not there: the state is of another agent or optimizer.
    """
    if name not in state:
        raise SnapshotError(f"the state holds no {name!r}: it is of another agent or optimizer than this one")
    return state[name]


def not_finite(priorities: NDArray[np.float32] | None, updates: int) -> NonFiniteError:
    """The error for an update that must not be applied; names the batch rows whose priority is to blame."""
    rows = [] if priorities is None else np.flatnonzero(~np.isfinite(priorities)).tolist()
    where = f"the error of batch rows {rows[:8]}" if rows else "the gradient"
    return NonFiniteError(f"update {updates + 1}: {where} is NaN or infinite; the parameters were left as they were")
