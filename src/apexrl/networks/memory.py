"""What carries a memory from step to step: an LSTM, a GRU, or a gated transformer with a cache.

Each runs one step, or many at once, with the same result. A state is a tuple of tensors whose first axis is the batch;
all zeros is the state at an episode's begin.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor, nn

State = tuple[Tensor, ...]
Kind = Literal["lstm", "gru", "transformer"]


class MemoryChoice(NamedTuple):
    """Which memory, and how large."""

    kind: Kind = "lstm"
    units: int = 512  # that it puts out at every step
    layers: int = 1  # of a transformer, as are the next ones
    heads: int = 4
    context: int = 32  # steps that it looks back


class Memory(Protocol):
    """One kind of memory. B is the batch, T the steps; time comes first."""

    fields: dict[str, tuple[int, ...]]  # the parts of a state by name -> shape of one row's

    def state(self, *parts: Tensor) -> State:
        """A state of its parts, in the order of ``fields``, each [B, *shape]."""

    def step(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """float32 [B, inputs] -> [B, units], and the state after it."""

    def run(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """float32 [T, B, inputs], steps of one episode each -> [T, B, units], and the state after the last."""

    def begin_orthogonal(self) -> None:
        """Weights as policy gradients begin with."""


class LSTMState(NamedTuple):
    """An LSTM's memory between two steps."""

    h: Tensor  # float32 [B, units]
    c: Tensor  # float32 [B, units]


class LSTM(nn.LSTM):
    """Hochreiter & Schmidhuber 1997."""

    def __init__(self, inputs: int, units: int) -> None:
        super().__init__(inputs, units)
        self.fields: dict[str, tuple[int, ...]] = {"lstm_h": (units,), "lstm_c": (units,)}

    def state(self, *parts: Tensor) -> LSTMState:
        return LSTMState(*parts)

    def step(self, x: Tensor, state: State) -> tuple[Tensor, LSTMState]:
        after = LSTMState(*torch.lstm_cell(x, state, *self.all_weights[0]))
        return after.h, after

    def run(self, x: Tensor, state: State) -> tuple[Tensor, LSTMState]:
        h, c = state
        with _weights_apart(x):
            y, (h, c) = self(x, (h.unsqueeze(0), c.unsqueeze(0)))
        return y, LSTMState(h[0], c[0])

    def begin_orthogonal(self) -> None:
        """Orthogonal gates and biases of zero (CleanRL's PPO with an LSTM), but 1 at the forget gates (Jozefowicz et
        al. 2015), as it was in IMPALA's TensorFlow."""
        _orthogonal_gates(self, 4)
        _, forget, _, _ = self.get_parameter("bias_ih_l0").detach().chunk(4)
        nn.init.ones_(forget)


class GRU(nn.GRU):
    """Cho et al. 2014."""

    def __init__(self, inputs: int, units: int) -> None:
        super().__init__(inputs, units)
        self.fields: dict[str, tuple[int, ...]] = {"gru_h": (units,)}

    def state(self, *parts: Tensor) -> State:
        return parts

    def step(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        h = torch.gru_cell(x, *state, *self.all_weights[0])
        return h, (h,)

    def run(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        with _weights_apart(x):
            y, h = self(x, state[0].unsqueeze(0))
        return y, (h[0],)

    def begin_orthogonal(self) -> None:
        """Orthogonal gates and biases of zero."""
        _orthogonal_gates(self, 3)


class GatedTransformer(nn.Module):
    """GTrXL (Parisotto et al. 2020, Stabilizing Transformers for Reinforcement Learning, arXiv 1910.06764), small.

    Every step attends to itself and to the ``context`` steps of its episode before it. The cache holds each layer's
    inputs at these, as of Transformer-XL (Dai et al. 2019), so a step costs the same however long its episode is.
    Where theirs has sinusoids of the distance, every head has a learned bias for each distance (Raffel et al. 2020).

    Raises:
        ValueError: ``heads`` do not divide ``units``.
    """

    def __init__(self, inputs: int, units: int, layers: int, heads: int, context: int) -> None:
        super().__init__()
        if units % heads:
            raise ValueError(f"a transformer's {heads} heads must divide its {units} units")
        self.context = context
        self.fields: dict[str, tuple[int, ...]] = {
            "transformer_cache": (layers, context, units),
            "transformer_steps": (1,),  # of the cache that are there, float32
        }
        self.embedding = nn.Linear(inputs, units)
        self.layers = nn.ModuleList(GatedLayer(units, heads, context) for _ in range(layers))

    def state(self, *parts: Tensor) -> State:
        return parts

    def step(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        y, after = self.run(x.unsqueeze(0), state)
        return y[0], after

    def run(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        (cache, cached), steps, context = state, x.shape[0], self.context
        column = torch.arange(context + steps, device=x.device)  # of the cache and then of x
        distance = column[context:, None] - column  # [T, C + T], to what comes later negative
        there = column >= context - cached  # [B, C + T]
        seen = ((distance >= 0) & (distance <= context)) & there.unsqueeze(1)  # [B, T, C + T]
        distance = distance.clamp(0, context)
        y, kept = self.embedding(x).transpose(0, 1), []
        for place, layer in enumerate(self.layers):
            whole = torch.cat((cache[:, place], y), dim=1)  # [B, C + T, units]
            kept.append(whole[:, steps:])
            y = layer(whole, y, seen, distance)
        return y.transpose(0, 1), (torch.stack(kept, dim=1), (cached + steps).clamp(max=context))

    def begin_orthogonal(self) -> None:
        """It stays as it is: its gates let the input through at first."""


class GatedLayer(nn.Module):
    """Attention and an MLP, each behind layer norm and joined to what comes in by a gate (GTrXL, section 3)."""

    def __init__(self, units: int, heads: int, context: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm, self.mlp_norm = nn.LayerNorm(units), nn.LayerNorm(units)
        self.query, self.key_value = nn.Linear(units, units, bias=False), nn.Linear(units, 2 * units, bias=False)
        self.by_distance = nn.Parameter(torch.zeros(heads, context + 1))
        self.attended = nn.Linear(units, units)
        self.mlp = nn.Sequential(nn.Linear(units, 2 * units), nn.ReLU(), nn.Linear(2 * units, units))
        self.attention_gate, self.mlp_gate = Gate(units), Gate(units)

    def forward(self, whole: Tensor, x: Tensor, seen: Tensor, distance: Tensor) -> Tensor:
        """Cache and inputs [B, C + T, units], the inputs x [B, T, units] again, which columns each sees bool
        [B, T, C + T], and how far they are int64 [T, C + T]; returns [B, T, units]."""
        whole = self.attention_norm(whole)
        query = self._split(self.query(whole[:, -x.shape[1] :]))  # [B, heads, T, units / heads]
        key, value = (self._split(part) for part in self.key_value(whole).chunk(2, dim=2))
        scores = query @ key.transpose(2, 3) / math.sqrt(query.shape[3]) + self.by_distance[:, distance]
        weights = torch.softmax(scores.masked_fill(~seen.unsqueeze(1), -math.inf), dim=3)
        y = self.attended((weights @ value).transpose(1, 2).flatten(2))
        x = self.attention_gate(x, torch.relu(y))
        gated: Tensor = self.mlp_gate(x, torch.relu(self.mlp(self.mlp_norm(x))))
        return gated

    def _split(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)


class Gate(nn.Module):
    """GRU-type gating (GTrXL, section 3.2), biased so that at first little but x comes through."""

    BIAS = 2.0  # the authors'

    def __init__(self, units: int) -> None:
        super().__init__()
        self.gates = nn.Linear(2 * units, 2 * units)
        self.candidate = nn.Linear(2 * units, units, bias=False)
        with torch.no_grad():
            self.gates.bias.zero_()
            self.gates.bias[units:] -= self.BIAS

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """[..., units] each."""
        reset, update = torch.sigmoid(self.gates(torch.cat((x, y), dim=-1))).chunk(2, dim=-1)
        candidate = torch.tanh(self.candidate(torch.cat((reset * x, y), dim=-1)))
        return x + update * (candidate - x)


def memory(inputs: int, choice: MemoryChoice) -> LSTM | GRU | GatedTransformer:
    """The memory that ``choice`` names, for so many inputs.

    Raises:
        ValueError: a transformer's heads do not divide its units.
    """
    if choice.kind == "transformer":
        return GatedTransformer(inputs, choice.units, choice.layers, choice.heads, choice.context)
    return (LSTM if choice.kind == "lstm" else GRU)(inputs, choice.units)


def kept(state: State, going: Tensor) -> list[Tensor]:
    """The parts of a state [B, ...], zero where ``going`` [B] bool is false: there an episode begins."""
    return [part * going.view(-1, *(1,) * (part.ndim - 1)) for part in state]


def _orthogonal_gates(layer: nn.RNNBase, gates: int) -> None:
    for name, parameter in layer.named_parameters():
        if "weight" in name:
            for gate in parameter.detach().chunk(gates):
                nn.init.orthogonal_(gate)
        else:
            nn.init.zeros_(parameter)


@contextmanager
def _weights_apart(x: Tensor) -> Iterator[None]:
    """cuDNN copies weights that lie in our one vector, and says so: it takes some microseconds."""
    with warnings.catch_warnings() if x.is_cuda else nullcontext():
        if x.is_cuda:
            warnings.filterwarnings("ignore", message="RNN module weights are not part of single contiguous chunk")
        yield
