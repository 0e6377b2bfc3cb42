"""One vector of all that a learner adds to a sum: some words, then the gradients of its networks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from apexrl.roles.gradient_compression import Largest

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from apexrl.agents.trained_network import Trained
    from apexrl.roles.gradient_compression import Rounding

_ALIGNMENT = 16  # float32 values: gradients begin on a cache line


class GradientVector:
    """The gradients of an agent's networks, which lie in ``vector`` where that is possible.

    Args:
        networks: of the agent. They come in the order of their sizes.
        words: numbers that are summed beside the gradients. Before them stands 1 of who has sent something that was not
            final, and of every network two follow them: 1 of who changes it, and of who clips it.
        send: called with ``vector`` and the first value of it that is final, while the largest network's gradient is
            computed, from its last layer to its first.
        early: values from which a network must be on for that.
        compression: of gradients, but for those of networks that average something else (``Trained.compressible``).
        device: of ``vector``; None: the CPU.
    """

    def __init__(
        self,
        networks: Mapping[str, Trained[Any]],
        words: int,
        send: Callable[[Tensor, int], None],
        early: int,
        compression: Rounding | Largest | None = None,
        device: torch.device | None = None,
    ) -> None:
        import torch

        self._compression = compression
        self._networks = sorted(networks.items(), key=lambda one: (one[1].compressible, one[1].gradient.numel()))
        self._words = words
        flags = 1 + words + 2 * len(networks)
        head = -(-flags // _ALIGNMENT) * _ALIGNMENT
        sizes = [network.gradient.numel() for _, network in self._networks]
        self.gradient_floats = sum(sizes)
        """Values of all gradients."""
        compressible = [size for size, (_, one) in zip(sizes, self._networks, strict=True) if one.compressible]
        self.exact = head + self.gradient_floats - sum(compressible)
        """The first so many values are never compressed."""
        self.most = 0 if compression is None else sum(map(compression.count, compressible))
        """Of the others, so many are not zero at most."""
        self.vector = torch.zeros(head + self.gradient_floats, device=device)
        self._head = self.vector[:flags]
        _, *parts = torch.split(self.vector, [head, *sizes])
        self._parts = {name: part for (name, _), part in zip(self._networks, parts, strict=True)}
        self._early: _EarlySends | None = None
        for name, network in self._networks:
            here = network.gradient.device == self.vector.device and not isinstance(compression, Largest)
            if here and network.compressible:  # statistics are kept for later steps, in which their part is zero
                network.place_gradient(self._parts[name])
                on_host = self.vector.device.type == "cpu"  # others are sent whole
                if on_host and network.gradient.numel() >= early and network is self._networks[-1][1]:
                    self._early = _EarlySends(network, self.vector, send)

    def begin_pass(self) -> None:
        """A gradient is computed next, of which parts may be sent as soon as they are there."""
        if self._early is not None:
            self._early.begin()

    def filled(self, groups: Mapping[str, Tensor], words: Sequence[float]) -> Tensor:
        """``vector``, made that of ``groups``, name -> flat gradient; zeros where an update changes others only."""
        flags = [0.0, *words]
        compressed: list[tuple[str, Tensor, Tensor]] = []
        for name, network in self._networks:
            part, gradient = self._parts[name], groups.get(name)
            flags += [0.0, 0.0] if gradient is None else [1.0, float(network.clips_average)]
            if gradient is None:
                part.zero_()
            elif self._compression is not None and network.compressible:
                compressed.append((name, gradient, part))
            elif gradient.data_ptr() != part.data_ptr():
                part.copy_(gradient)
        if self._early is not None and not self._early.end():
            flags[0], self._early = 1.0, None  # it would be again and again
        self._head.copy_(self._head.new_tensor(flags, device="cpu"))
        if self._compression is not None:
            self._compression.fill(compressed)
        return self.vector

    @staticmethod
    def again(total: Tensor) -> bool:
        """Somebody sent what was not final: all are to sum once more."""
        return bool(total[0])

    def averages(self, total: Tensor) -> tuple[list[float], dict[str, Tensor]]:
        """The summed words, and the averages, clipped, of the groups that somebody changes, in the memory of
        ``total``."""
        if self._compression is not None:
            self._compression.sent()
        flags = total[: len(self._head)].tolist()
        words, of_networks = flags[1 : 1 + self._words], flags[1 + self._words :]
        found: dict[str, Tensor] = {}
        start = total.numel() - self.gradient_floats
        for (name, network), count, clips in zip(self._networks, of_networks[::2], of_networks[1::2], strict=True):
            live = network.gradient
            if count:
                mean = total[start : start + live.numel()].div_(count).to(live.device)
                found[name] = network.clip_average(mean) if clips else mean
            start += live.numel()
        return words, found

    def metrics(self) -> dict[str, float]:
        """What the newest measured compression has lost."""
        return {} if self._compression is None else {"compression_error": self._compression.error}


class _EarlySends:
    """Sends a network's gradient while it is computed: it is the last of ``vector``."""

    def __init__(self, network: Trained[Any], vector: Tensor, send: Callable[[Tensor, int], None]) -> None:
        import torch

        self._vector, self._send = vector, send
        start = vector.numel() - network.gradient.numel()
        # Of the same memory, with a count of changes that others' parts do not raise.
        self._gradient = torch.from_numpy(vector.numpy()[start:])
        network.place_gradient(self._gradient)
        slices = network.parameters.slices
        learning = [(slices[name], one) for name, one in network.network.named_parameters() if one.requires_grad]
        learning.sort(key=lambda pair: -pair[0].start)
        self._ends = [start + where.stop for where, _ in learning] + [start]
        self._there = [False] * len(learning)
        self._next = 0  # of them, the last of the vector first, that is not there
        self._armed = self._changed = False
        self._count = 0
        for place, (_, parameter) in enumerate(learning):
            parameter.register_post_accumulate_grad_hook(self._arrival(place))

    def begin(self) -> None:
        self._there = [False] * len(self._there)
        self._next, self._armed, self._changed = 0, True, False

    def end(self) -> bool:
        """Whether all that was sent is as it was then."""
        armed, self._armed = self._armed, False
        return not (armed and self._next and (self._changed or self._count != self._gradient._version))

    def _arrival(self, place: int) -> Callable[[Tensor], None]:
        def arrive(_: Tensor) -> None:
            if not self._armed:
                return
            self._changed |= self._there[place]
            self._there[place] = True
            self._count = self._gradient._version
            before = self._next
            while self._next < len(self._there) and self._there[self._next]:
                self._next += 1
            if self._next > before:
                self._send(self._vector, self._ends[self._next])

        return arrive
