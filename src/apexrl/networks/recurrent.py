"""R2D2's network: observations -> LSTM -> Q-values, one step at a time or a batch of sequences at once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from apexrl.errors import SpecError
from apexrl.networks.encoders import PLAIN, LayerChoice
from apexrl.networks.layer_norm import stream_norm
from apexrl.networks.memory import LSTMState, MemoryChoice, State
from apexrl.networks.q_network import dueling
from apexrl.networks.recurrent_trunk import RecurrentTrunk
from apexrl.spec import EnvSpec

Observation = Mapping[str, Tensor]


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
        self.body = RecurrentTrunk(spec, hidden, MemoryChoice("lstm", units), image_units, network, choice)
        self.streams: nn.Linear | None = None  # the hidden layers of both streams in one matrix product
        if self.body.sees_image:
            self.streams = nn.Linear(units, (1 + dueling) * image_units)
            self.norm = stream_norm(1 + dueling, image_units, choice.layer_norm)
            units = image_units
        self.advantage = nn.Linear(units, self.actions)
        self.value = nn.Linear(units, 1) if dueling else None

    def step(self, observation: Observation, state: LSTMState) -> tuple[Tensor, LSTMState]:
        """One step of B environments: Q float32 [B, actions], and the state after it."""
        h, after = self.body.step(observation, state)
        return self.head(h), LSTMState(*after)

    def unroll(
        self, observation: Observation, state: State, first: Tensor, resets: Sequence[int]
    ) -> tuple[Tensor, State]:
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
