"""Text, sequences and graphs, whose length varies -> features of fixed size. What is padded has no influence."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from apexrl.errors import SpecError
from apexrl.spec import LENGTH, EnvSpec

Observation = Mapping[str, Tensor]

UNITS = 64  # ours, of every layer here
CHARACTER = 32  # ours: numbers of one byte's embedding
WIDTH = 5  # bytes that a filter sees
ROUNDS = 2  # of messages
FEW = 32  # categories of an element that are one-hot; more are embedded
BYTES = 256


class TextEncoder(nn.Module):
    """Embeddings of bytes, filters over ``WIDTH`` of them, and each filter's greatest answer (Kim 2014, Convolutional
    Neural Networks for Sentence Classification, EMNLP; over characters as Zhang et al. 2015)."""

    features = UNITS

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(BYTES, CHARACTER)
        self.filters = nn.Conv1d(CHARACTER, UNITS, WIDTH, padding=WIDTH // 2)

    def forward(self, codes: Tensor, mask: Tensor) -> Tensor:
        """UTF-8 uint8 [N, L], and float32 [N, L] that is 1 where there is text; returns float32 [N, features]."""
        x = self.table(codes.long()) * mask.unsqueeze(2)
        answers = torch.relu(self.filters(x.transpose(1, 2))) * mask.unsqueeze(1)
        return answers.amax(dim=2)


class EntryEncoder(nn.Module):
    """One entry of each element: numbers as they are, categories one-hot or embedded, texts as of ``TextEncoder``."""

    def __init__(self, name: str, spec: EnvSpec) -> None:
        super().__init__()
        field, categories = spec.observation[name], spec.categories.get(name, 0)
        numbers = math.prod(field.shape[1:])
        self._scale = 1.0 / 255.0 if field.dtype == "uint8" else 1.0
        self._one_hot = categories if categories <= FEW else 0
        self.table: nn.Embedding | None = None
        self.text: TextEncoder | None = None
        if categories == BYTES and field.dtype == "uint8":
            self.text, self.features = TextEncoder(), UNITS
        elif self._one_hot:
            self.features = numbers * categories
        elif categories:
            self.table, self.features = nn.Embedding(categories, CHARACTER), numbers * CHARACTER
        else:
            self.features = numbers

    def forward(self, values: Tensor) -> Tensor:
        """[N, most, ...] of any dtype; returns float32 [N, most, features]."""
        rows = values.shape[:2]
        if self.text is not None:
            codes = values.flatten(0, 1)
            encoded: Tensor = self.text(codes, (codes != 0).to(torch.float32))
            return encoded.view(*rows, -1)
        if self.table is not None:
            embedded: Tensor = self.table(values.long())
            return embedded.reshape(*rows, -1)
        if self._one_hot:
            return nn.functional.one_hot(values.long(), self._one_hot).to(torch.float32).reshape(*rows, -1)
        numbers = values.reshape(*rows, -1).to(torch.float32)
        return numbers * self._scale if self._scale != 1.0 else numbers


class Entries(nn.Module):
    """Several entries of the same elements side by side.

    Args:
        names: of their fields.
    """

    def __init__(self, names: tuple[str, ...], spec: EnvSpec) -> None:
        super().__init__()
        self._names = names
        encoders = [EntryEncoder(name, spec) for name in names]
        self.encoders = nn.ModuleList(encoders)
        self.features = sum(encoder.features for encoder in encoders)

    def forward(self, observation: Observation) -> tuple[Tensor, Tensor]:
        """Returns float32 [N, most, features], and the mask float32 [N, most]."""
        values = [encoder(observation[name]) for name, encoder in zip(self._names, self.encoders, strict=True)]
        x = values[0] if len(values) == 1 else torch.cat(values, dim=2)
        return x, there(observation[self._names[0] + LENGTH], x.shape[1])


class WholeText(nn.Module):
    """A text of an observation."""

    features = UNITS

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name
        self.text = TextEncoder()

    def forward(self, observation: Observation) -> Tensor:
        codes = observation[self._name]
        encoded: Tensor = self.text(codes, there(observation[self._name + LENGTH], codes.shape[1]))
        return encoded


class SequenceEncoder(nn.Module):
    """Two layers for every element, which know its place, and the mean and the maximum of their answers (Zaheer et al.
    2017, Deep Sets, arXiv 1703.06114)."""

    features = 2 * UNITS

    def __init__(self, names: tuple[str, ...], spec: EnvSpec) -> None:
        super().__init__()
        self.entries = Entries(names, spec)
        self.layers = nn.Sequential(
            nn.Linear(self.entries.features + 1, UNITS), nn.ReLU(), nn.Linear(UNITS, UNITS), nn.ReLU()
        )

    def forward(self, observation: Observation) -> Tensor:
        x, mask = self.entries(observation)
        place = torch.arange(x.shape[1], device=x.device, dtype=torch.float32) / x.shape[1]
        place = place.view(1, -1, 1).expand(x.shape[0], -1, 1)
        return pooled(self.layers(torch.cat((x, place), dim=2)), mask)


class GraphEncoder(nn.Module):
    """``ROUNDS`` of messages along the edges, both ways, and the mean and the maximum over the nodes (Gilmer et al.
    2017, Neural Message Passing for Quantum Chemistry, arXiv 1704.01212; sums of messages, layers of their own)."""

    features = 2 * UNITS

    def __init__(self, name: str, spec: EnvSpec) -> None:
        super().__init__()
        self._links = f"{name}/edge_links"
        self.nodes = Entries((f"{name}/nodes",), spec)
        self.edges = Entries((f"{name}/edges",), spec) if f"{name}/edges" in spec.padded else None
        self.begin = nn.Linear(self.nodes.features, UNITS)
        inputs = 2 * UNITS + (self.edges.features if self.edges is not None else 0)
        self.messages = nn.ModuleList(nn.Linear(inputs, 2 * UNITS) for _ in range(ROUNDS))
        self.updates = nn.ModuleList(nn.Linear(3 * UNITS, UNITS) for _ in range(ROUNDS))

    def forward(self, observation: Observation) -> Tensor:
        x, mask = self.nodes(observation)
        h = torch.relu(self.begin(x))
        links = observation[self._links].long()  # [N, most, 2]
        exists = there(observation[self._links + LENGTH], links.shape[1]).unsqueeze(2)
        source, target = (links[:, :, end : end + 1].expand(-1, -1, UNITS) for end in (0, 1))
        also = [] if self.edges is None else [self.edges(observation)[0]]
        for message, update in zip(self.messages, self.updates, strict=True):
            ends = torch.cat((h.gather(1, source), h.gather(1, target), *also), dim=2)
            sent, returned = (torch.relu(message(ends)) * exists).chunk(2, dim=2)
            nothing = torch.zeros_like(h)
            received = nothing.scatter_add(1, target, sent), nothing.scatter_add(1, source, returned)
            h = torch.relu(update(torch.cat((h, *received), dim=2)))
        return pooled(h, mask)


Varying = WholeText | SequenceEncoder | GraphEncoder


class Frames(nn.Module):
    """An encoder of a value of variable length, for stacked frames: their features side by side."""

    def __init__(self, encoder: Varying, names: tuple[str, ...], stack: int) -> None:
        super().__init__()
        self.encoder, self._names = encoder, names
        self.features = stack * encoder.features

    def forward(self, observation: Observation) -> Tensor:
        """name -> [B, stack, *shape]."""
        single = {name: observation[name].flatten(0, 1) for name in self._names}
        features: Tensor = self.encoder(single)
        return features.view(-1, self.features)


def varying_encoders(spec: EnvSpec) -> list[Varying | Frames]:
    """An encoder for each text, sequence and graph of an observation, called with name -> [B, (stack,) *shape]; it
    returns float32 [B, features].

    Raises:
        SpecError: a part of a graph is missing.
    """
    fields: dict[str, list[str]] = {}
    for name, padded in spec.padded.items():
        fields.setdefault(padded.of, []).append(name)
    return [_encoder(of, tuple(names), spec) for of, names in fields.items()]


def _encoder(of: str, names: tuple[str, ...], spec: EnvSpec) -> Varying | Frames:
    kind = spec.padded[names[0]].kind
    encoder: Varying
    if kind == "text":
        encoder = WholeText(of)
    elif kind == "sequence":
        encoder = SequenceEncoder(names, spec)
    else:
        if not {f"{of}/nodes", f"{of}/edge_links"} <= set(names):
            raise SpecError(f"{of} is a graph without nodes or edge_links")
        encoder = GraphEncoder(of, spec)
    if spec.stack == 1:
        return encoder
    return Frames(encoder, (*names, *(name + LENGTH for name in names)), spec.stack)


def there(length: Tensor, most: int) -> Tensor:
    """Lengths int32 [N] as float32 [N, most]: 1 where there is something."""
    places = torch.arange(most, device=length.device)
    return (places < length.reshape(-1, 1)).to(torch.float32)


def pooled(x: Tensor, mask: Tensor) -> Tensor:
    """Mean and maximum of float32 [N, most, U], none of it negative, where ``mask`` [N, most] is 1; [N, 2·U]. Of
    nothing, zeros."""
    seen = x * mask.unsqueeze(2)
    mean = seen.sum(dim=1) / mask.sum(dim=1, keepdim=True).clamp(min=1.0)
    return torch.cat((mean, seen.amax(dim=1)), dim=1)
