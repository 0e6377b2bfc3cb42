"""A policy and the value of the state from one network: observations -> a distribution's outputs, and V."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from apexrl.networks.distributions import held
from apexrl.networks.encoders import PLAIN, LayerChoice
from apexrl.networks.memory import MemoryChoice, State
from apexrl.networks.recurrent_trunk import RecurrentTrunk
from apexrl.networks.trunk import Trunk
from apexrl.spec import EnvSpec, is_state

Observation = Mapping[str, Tensor]

POLICY_GAIN = 0.01  # of the policy head's orthogonal start: at first all actions are as good (CleanRL's PPO)
SMALL_VALUE_GAIN = 0.01
"""Of a central value's head, where returns are scaled to size 1 (ours). With 1, as in CleanRL, first values are as
large as the whole return, and short episodes that are cut bootstrap from them for a long time. Other values keep 1:
Acrobot began to learn later with less."""


class PolicyValue(nn.Module):
    """A trunk, a memory behind it where asked for, and two linear heads (Mnih et al. 2016, section 5; IMPALA, fig. 3).

    Args:
        hidden: units of the trunk's fully connected layers for vectors.
        outputs: numbers that the policy head says of an observation.
        free: numbers beside them that are parameters of their own, the same for all observations: log σ of a Gaussian
            (CleanRL's PPO, Stable-Baselines3).
        memory: which one, if any.
        image_units: units of the fully connected layer behind convolutions.
        network: an encoder of your own (``encoder_for``).
        separate: the value has a trunk of its own; not with a memory.
        central: so it has, with a memory too, and it alone sees the state of the environment; it has no memory.
        choice: which layers encoders have.
        value_gain: of the value head's orthogonal start.
        free_start: the first value of the ``free`` numbers.
        free_bounds: least and greatest value of the ``free`` numbers while they learn. Where one is beyond them, a
            gradient that leads back still moves it.
    """

    def __init__(
        self,
        spec: EnvSpec,
        hidden: Sequence[int],
        outputs: int,
        free: int = 0,
        memory: MemoryChoice | None = None,
        image_units: int = 512,
        network: str = "",
        separate: bool = False,
        choice: LayerChoice = PLAIN,
        central: bool = False,
        value_gain: float = 1.0,
        free_start: float = 0.0,
        free_bounds: tuple[float, float] = (-math.inf, math.inf),
    ) -> None:
        super().__init__()
        assert not (separate and memory), "values with a memory of their own would need its state"
        self._central = central
        seen = spec.without_state() if central else spec
        self.recurrent = RecurrentTrunk(seen, hidden, memory, image_units, network, choice) if memory else None
        if self.recurrent is not None:
            self.recurrent.begin_orthogonal()
        self.trunk = None if memory else Trunk(seen, hidden, image_units, network, choice)
        value_trunk = Trunk(spec, hidden, image_units, network, choice) if separate or central else None
        for trunk in (self.trunk, value_trunk):
            if trunk is not None:
                trunk.begin_orthogonal()
        features = memory.units if memory else self._feed_forward.features
        self.policy = nn.Linear(features, outputs)
        nn.init.orthogonal_(self.policy.weight, POLICY_GAIN)
        nn.init.zeros_(self.policy.bias)
        self.free = nn.Parameter(torch.full((free,), free_start)) if free else None
        self._free_bounds = free_bounds
        self.value_trunk = value_trunk  # what only the value reads comes last: its gradient is clipped for itself
        self.value = nn.Linear(features if value_trunk is None else value_trunk.features, 1)
        nn.init.orthogonal_(self.value.weight, value_gain)
        nn.init.zeros_(self.value.bias)

    @property
    def _feed_forward(self) -> Trunk:
        assert self.trunk is not None, "it has a memory, and needs its state"
        return self.trunk

    def _seen(self, observation: Observation) -> Observation:
        """What the policy is shown of it."""
        if not self._central:
            return observation
        return {name: value for name, value in observation.items() if not is_state(name)}

    def act(self, observation: Observation, state: State | None = None) -> tuple[Tensor, State | None]:
        """One step of B environments: the policy's outputs, float32 [B, outputs + free], and the state after it.

        Args:
            observation: name -> [B, (stack,) *shape]; with a central value the state need not be there.
            state: of the memory, where there is one.
        """
        observation = self._seen(observation)
        if self.recurrent is None:
            return self._outputs(self._feed_forward(observation)), None
        assert state is not None, "a memory needs its state"
        features, after = self.recurrent.step(observation, state)
        return self._outputs(features), after

    def unroll(
        self,
        observation: Observation,
        state: State | None = None,
        first: Tensor | None = None,
        resets: Sequence[int] = (),
    ) -> tuple[Tensor, Tensor]:
        """B unrolls of T observations: the policy's outputs, float32 [T, B, outputs + free], and V, float32 [T, B].

        Args:
            observation: name -> [B, T, (stack,) *shape].
            state, first, resets: of the memory, where there is one: see ``RecurrentTrunk.unroll``.
        """
        rows, steps = next(iter(observation.values())).shape[:2]
        if self.recurrent is None:
            flat = _flat(observation)
            x = self._feed_forward(self._seen(flat))  # [B·T, features]
            outputs, value = self._heads(x, None if self.value_trunk is None else self.value_trunk(flat))
            return outputs.view(rows, steps, -1).transpose(0, 1), value.view(rows, steps).t()
        assert state is not None
        assert first is not None
        x = self.recurrent.outputs(self._seen(observation), state, first, resets).flatten(0, 1)  # [T·B, units]
        if self.value_trunk is None:
            outputs, value = self._heads(x)
            return outputs.view(steps, rows, -1), value.view(steps, rows)
        outputs = self._outputs(x).view(steps, rows, -1)
        return outputs, self.value(self.value_trunk(_flat(observation))).view(rows, steps).t()

    def _heads(self, x: Tensor, value_x: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The policy's outputs, and V [N, 1], of features; in one product, and so in one pass back, where both have the
        same."""
        if value_x is not None:
            return self._outputs(x), self.value(value_x)
        heads = self.policy, self.value
        weight, bias = (torch.cat([getattr(head, name) for head in heads]) for name in ("weight", "bias"))
        outputs, value = torch.split(nn.functional.linear(x, weight, bias), [self.policy.out_features, 1], dim=1)
        return self._with_free(outputs), value

    def _outputs(self, x: Tensor) -> Tensor:
        return self._with_free(self.policy(x))

    def _with_free(self, outputs: Tensor) -> Tensor:
        if self.free is None:
            return outputs
        free = held(self.free, *self._free_bounds) if outputs.requires_grad else self.free
        return torch.cat((outputs, free.expand(outputs.shape[0], -1)), dim=1)


def _flat(observation: Observation) -> dict[str, Tensor]:
    """name -> [B, T, …] as name -> [B·T, …]."""
    return {name: value.reshape(-1, *value.shape[2:]) for name, value in observation.items()}
