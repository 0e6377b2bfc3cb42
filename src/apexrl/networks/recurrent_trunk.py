"""Observations -> memory, one step at a time or a batch of sequences at once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from apexrl.networks.encoders import PLAIN, LayerChoice
from apexrl.networks.episode_pieces import pieces
from apexrl.networks.memory import Memory, MemoryChoice, State, kept, memory
from apexrl.networks.trunk import Trunk
from apexrl.spec import LAST_ACTION, LAST_REWARD, EnvSpec

Observation = Mapping[str, Tensor]

POLICY = "acting_policy"
"""Field of which policy of several acts, one-hot, where a network has several."""
FEW_RESETS = 8  # ours: up to so many, a kernel between every two takes no longer than cutting into pieces


class RecurrentTrunk(nn.Module):
    """A trunk and a memory behind it.

    Previous action and reward, where the environment shows them, go past the trunk into the memory (Kapturowski et al.
    2019, section 2.3; Espeholt et al. 2018, figure 3); so does which policy acts (Badia et al. 2020).

    Args:
        hidden: units of the trunk's fully connected layers for vectors.
        image_units: units of the fully connected layer behind convolutions.
        network: an encoder of your own (``encoder_for``), for all but previous action and reward.
        layers: which layers ours have.
    """

    def __init__(
        self,
        spec: EnvSpec,
        hidden: Sequence[int],
        choice: MemoryChoice,
        image_units: int = 512,
        network: str = "",
        layers: LayerChoice = PLAIN,
    ) -> None:
        super().__init__()
        self.features = choice.units
        self.past = tuple(name for name in (LAST_ACTION, LAST_REWARD, POLICY) if name in spec.observation)
        shown = {name: field for name, field in spec.observation.items() if name not in self.past}
        self.trunk = Trunk(replace(spec, observation=shown), hidden, image_units, network, layers)
        beside = spec.stack * sum(math.prod(spec.observation[name].shape) for name in self.past)
        self.width = self.trunk.features + beside  # of the memory's inputs
        self._kind = choice.kind
        self.add_module(choice.kind, memory(self.width, choice))

    @property
    def memory(self) -> Memory:
        """Under the name of its kind, which its parameters' names begin with."""
        found: Memory = getattr(self, self._kind)
        return found

    @property
    def sees_image(self) -> bool:
        """Whether convolutions of ours are in the trunk."""
        return self.trunk.image is not None

    def begin_orthogonal(self) -> None:
        """The trunk's orthogonal start, and the memory's."""
        self.trunk.begin_orthogonal()
        self.memory.begin_orthogonal()

    def inputs(self, observation: Observation) -> Tensor:
        """The inputs of the memory: name -> [N, (stack,) *shape]; returns float32 [N, inputs]."""
        x: Tensor = self.trunk(observation)
        past = [observation[name].reshape(x.shape[0], -1).to(torch.float32) for name in self.past]
        return torch.cat((x, *past), dim=1) if past else x

    def step(self, observation: Observation, state: State) -> tuple[Tensor, State]:
        """One step of B environments: what the memory puts out, float32 [B, units], and the state after it."""
        return self.memory.step(self.inputs(observation), state)

    def sequence_inputs(self, observation: Observation) -> Tensor:
        """``inputs`` of name -> [B, T, (stack,) *shape], float32 [T, B, inputs]."""
        rows, steps = next(iter(observation.values())).shape[:2]
        x = self.inputs({name: value.reshape(-1, *value.shape[2:]) for name, value in observation.items()})
        return x.view(rows, steps, -1).transpose(0, 1)

    def unroll(
        self, observation: Observation, state: State, first: Tensor, resets: Sequence[int]
    ) -> tuple[Tensor, State]:
        """T steps of B sequences: what the memory puts out, float32 [T, B, units], and the state after the last.

        Args:
            observation: name -> [B, T, (stack,) *shape].
            state: before the first step.
            first: [T, B] bool, true where the state is zeroed before the step.
            resets: the steps at which ``first`` is true anywhere; between them runs one kernel.
        """
        return self.unroll_inputs(self.sequence_inputs(observation), state, first, resets)

    def unroll_inputs(self, x: Tensor, state: State, first: Tensor, resets: Sequence[int]) -> tuple[Tensor, State]:
        """As ``unroll``, of ``sequence_inputs``."""
        outputs = []
        bounds = [0, *(step for step in resets if step > 0), len(x)]
        for start, end in pairwise(bounds):
            if start in resets:
                state = self.memory.state(*kept(state, ~first[start]))
            y, state = self.memory.run(x[start:end], state)
            outputs.append(y)
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs), state

    def outputs(self, observation: Observation, state: State, first: Tensor, resets: Sequence[int]) -> Tensor:
        """The first part of what ``unroll`` returns. Where episodes begin at many steps, as in unrolls, kernels run
        through the pieces between them: some for all, instead of one for each of those steps."""
        x = self.sequence_inputs(observation)
        if len(resets) <= FEW_RESETS:
            return self.unroll_inputs(x, state, first, resets)[0]
        steps, rows = x.shape[:2]
        x = x.flatten(0, 1)  # [T·B, inputs]

        def there(indices: NDArray[Any]) -> Tensor:
            return torch.from_numpy(indices).to(x.device)

        cut = pieces(first.cpu().numpy())
        outputs = []
        for group in cut.groups:
            numbers, row, going = there(group.steps), there(group.rows), there(group.goes_on)
            before = self.memory.state(*kept(tuple(part[row] for part in state), going))
            y, _ = self.memory.run(x.index_select(0, numbers.flatten()).view(*numbers.shape, -1), before)
            outputs.append(y.flatten(0, 1))
        return torch.cat(outputs).index_select(0, there(cut.places)).view(steps, rows, -1)
