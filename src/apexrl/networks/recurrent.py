"""Observations -> LSTM -> Q-values, one step at a time or a batch of sequences at once."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from apexrl.errors import SpecError
from apexrl.networks.actor_critic import Trunk
from apexrl.networks.encoders import PLAIN, LayerChoice
from apexrl.networks.episode_pieces import pieces
from apexrl.networks.layer_norm import stream_norm
from apexrl.networks.q_network import dueling
from apexrl.spec import LAST_ACTION, LAST_REWARD, EnvSpec

Observation = Mapping[str, Tensor]

FEW_RESETS = 8  # ours: up to so many, a kernel between every two takes no longer than cutting into pieces


class LSTMState(NamedTuple):
    """An LSTM's memory between two steps."""

    h: Tensor  # float32 [B, units]
    c: Tensor  # float32 [B, units]


class RecurrentTrunk(nn.Module):
    """A trunk and an LSTM behind it.

    Previous action and reward, where the environment shows them, go past the trunk into the LSTM (Kapturowski et al.
    2019, section 2.3; Espeholt et al. 2018, figure 3).

    Args:
        spec: the environment.
        hidden: units of the trunk's fully connected layers for vectors.
        units: of the LSTM.
        image_units: units of the fully connected layer behind convolutions.
        network: an encoder of your own (``encoder_for``), for all but previous action and reward.
        choice: which layers ours have.
    """

    def __init__(
        self,
        spec: EnvSpec,
        hidden: Sequence[int],
        units: int,
        image_units: int = 512,
        network: str = "",
        choice: LayerChoice = PLAIN,
    ) -> None:
        super().__init__()
        self.features = units
        self.past = tuple(name for name in (LAST_ACTION, LAST_REWARD) if name in spec.observation)
        shown = {name: field for name, field in spec.observation.items() if name not in self.past}
        self.trunk = Trunk(replace(spec, observation=shown), hidden, image_units, network, choice)
        beside = spec.stack * sum(math.prod(spec.observation[name].shape) for name in self.past)
        self.lstm = nn.LSTM(self.trunk.features + beside, units)

    @property
    def sees_image(self) -> bool:
        """Whether convolutions of ours are in the trunk."""
        return self.trunk.image is not None

    def begin_orthogonal(self) -> None:
        """The trunk's orthogonal start, and the LSTM's: orthogonal gates and biases of zero (CleanRL's PPO with an
        LSTM), but 1 at the forget gates (Jozefowicz et al. 2015), as it was in IMPALA's TensorFlow.
        """
        self.trunk.begin_orthogonal()
        for name, parameter in self.lstm.named_parameters():
            if "weight" in name:
                for gate in parameter.detach().chunk(4):
                    nn.init.orthogonal_(gate)
            else:
                nn.init.zeros_(parameter)
        _, forget, _, _ = self.lstm.get_parameter("bias_ih_l0").detach().chunk(4)
        nn.init.ones_(forget)

    def inputs(self, observation: Observation) -> Tensor:
        """The inputs of the LSTM: name -> [N, (stack,) *shape]; returns float32 [N, inputs]."""
        x: Tensor = self.trunk(observation)
        past = [observation[name].reshape(x.shape[0], -1).to(torch.float32) for name in self.past]
        return torch.cat((x, *past), dim=1) if past else x

    def step(self, observation: Observation, state: LSTMState) -> LSTMState:
        """One step of B environments: the state after it, whose h is what the LSTM puts out."""
        return LSTMState(*torch.lstm_cell(self.inputs(observation), state, *self.lstm.all_weights[0]))

    def unroll(
        self, observation: Observation, state: LSTMState, first: Tensor, resets: Sequence[int]
    ) -> tuple[Tensor, LSTMState]:
        """T steps of B sequences: what the LSTM puts out, float32 [T, B, units], and the state after the last.

        Args:
            observation: name -> [B, T, (stack,) *shape].
            state: before the first step.
            first: [T, B] bool, true where the state is zeroed before the step.
            resets: the steps at which ``first`` is true anywhere; between them runs one kernel.
        """
        rows, steps = next(iter(observation.values())).shape[:2]
        x = self.inputs({name: value.reshape(-1, *value.shape[2:]) for name, value in observation.items()})
        x = x.view(rows, steps, -1).transpose(0, 1)
        outputs = []
        bounds = [0, *(step for step in resets if step > 0), steps]
        for start, end in pairwise(bounds):
            if start in resets:
                going = ~first[start].unsqueeze(1)
                state = LSTMState(state.h * going, state.c * going)
            y, state = self._run(x[start:end], state)
            outputs.append(y)
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs), state

    def outputs(self, observation: Observation, state: LSTMState, first: Tensor, resets: Sequence[int]) -> Tensor:
        """The first part of what ``unroll`` returns. Where episodes begin at many steps, as in unrolls, kernels run
        through the pieces between them: some for all, instead of one for each of those steps."""
        if len(resets) <= FEW_RESETS:
            return self.unroll(observation, state, first, resets)[0]
        rows, steps = next(iter(observation.values())).shape[:2]
        x = self.inputs({name: value.reshape(-1, *value.shape[2:]) for name, value in observation.items()})
        x = x.view(rows, steps, -1).transpose(0, 1).flatten(0, 1)  # [T·B, inputs]

        def there(indices: NDArray[Any]) -> Tensor:
            return torch.from_numpy(indices).to(x.device)

        cut = pieces(first.cpu().numpy())
        outputs = []
        for group in cut.groups:
            numbers, row, going = there(group.steps), there(group.rows), there(group.goes_on).unsqueeze(1)
            before = LSTMState(state.h[row] * going, state.c[row] * going)
            y, _ = self._run(x.index_select(0, numbers.flatten()).view(*numbers.shape, -1), before)
            outputs.append(y.flatten(0, 1))
        return torch.cat(outputs).index_select(0, there(cut.places)).view(steps, rows, -1)

    def _run(self, x: Tensor, state: LSTMState) -> tuple[Tensor, LSTMState]:
        with warnings.catch_warnings() if x.is_cuda else nullcontext():
            if x.is_cuda:  # cuDNN copies weights that lie in our one vector, and says so: it takes some microseconds
                warnings.filterwarnings("ignore", message="RNN module weights are not part of single contiguous chunk")
            y, (h, c) = self.lstm(x, (state.h.unsqueeze(0), state.c.unsqueeze(0)))
        return y, LSTMState(h[0], c[0])


class RecurrentQ(nn.Module):
    """R2D2's network (Kapturowski et al. 2019, section 2.3): a trunk, an LSTM, and a head that is plain or dueling.

    Between convolutions and LSTM is a fully connected layer, which the paper does not mention. Where an image is seen,
    the head has a fully connected layer of its own, one per stream when dueling.

    Args:
        spec: the environment; its actions must be discrete.
        hidden: units of the trunk's fully connected layers for vectors.
        units: of the LSTM.
        dueling: value and advantage streams.
        image_units: units of the fully connected layers behind convolutions, and of those of the head.
        network: an encoder of your own (``encoder_for``), for all but previous action and reward.
        choice: which layers ours have.
    """

    def __init__(
        self,
        spec: EnvSpec,
        hidden: Sequence[int],
        units: int,
        dueling: bool,
        image_units: int = 512,
        network: str = "",
        choice: LayerChoice = PLAIN,
    ) -> None:
        super().__init__()
        if spec.action.box:
            raise SpecError(f"Q-values need discrete actions; this environment takes {spec.action}")
        self.actions = spec.action.n or math.prod(spec.action.nvec)
        self.units = units
        self.dueling = dueling
        self.body = RecurrentTrunk(spec, hidden, units, image_units, network, choice)
        self.streams: nn.Linear | None = None  # the hidden layers of both streams in one matrix product
        if self.body.sees_image:
            self.streams = nn.Linear(units, (1 + dueling) * image_units)
            self.norm = stream_norm(1 + dueling, image_units, choice.layer_norm)
            units = image_units
        self.advantage = nn.Linear(units, self.actions)
        self.value = nn.Linear(units, 1) if dueling else None

    def step(self, observation: Observation, state: LSTMState) -> tuple[Tensor, LSTMState]:
        """One step of B environments: Q float32 [B, actions], and the state after it."""
        after = self.body.step(observation, state)
        return self.head(after.h), after

    def unroll(
        self, observation: Observation, state: LSTMState, first: Tensor, resets: Sequence[int]
    ) -> tuple[Tensor, LSTMState]:
        """As ``RecurrentTrunk.unroll``: what the LSTM puts out, for ``head``, and the state after the last step."""
        return self.body.unroll(observation, state, first, resets)

    def head(self, x: Tensor) -> Tensor:
        """Outputs of the LSTM, float32 [..., units]; returns Q, float32 [..., actions]."""
        flat = x.reshape(-1, self.units)
        advantage = value = flat
        if self.streams is not None:
            flat = torch.relu(self.norm(self.streams(flat)))
            advantage, value = (flat, flat) if self.value is None else flat.chunk(2, dim=1)
        q: Tensor = self.advantage(advantage)
        if self.value is not None:
            q = dueling(self.value(value), q)
        return q.view(*x.shape[:-1], self.actions)
