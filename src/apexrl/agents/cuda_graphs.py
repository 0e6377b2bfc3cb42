"""The forward and backward passes of a learner's update as a CUDA graph: one launch instead of hundreds.

Small networks leave a GPU waiting for the host, which launches every kernel by itself.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from apexrl.agents.normalizer import Normalizer
from apexrl.agents.trained_network import Trained
from apexrl.config import AgentConfig

R = TypeVar("R")

WARM_UP_CALLS = 3  # as PyTorch's documentation has it: libraries set themselves up, and memory is taken
MOST_GRAPHS = 8  # of one agent; each holds the memory of a pass


class Recordable(Protocol):
    """The attributes of an agent that the graphs depend on."""

    networks: dict[str, Trained[Any]]
    _normalizer: Normalizer
    _config: AgentConfig
    _device: torch.device


class Recording(NamedTuple):
    """One function as a graph, with the tensors that it reads and writes."""

    graph: torch.cuda.CUDAGraph
    inputs: Any
    outputs: Any


class CudaGraphs:
    """Records functions of an agent, each for every set of shapes, and replays them.

    A function must launch the same kernels at every call with inputs of the same shapes: it draws no random numbers on
    the host, and does not wait for the device. What it writes besides its outputs are gradients, at every call anew.
    """

    def __init__(self, agent: Recordable) -> None:
        self._agent = agent
        self._recordings: dict[Hashable, Recording] = {}
        self._memory: tuple[int, ...] = ()  # of the recordings
        self._failed = False

    def run(self, function: Callable[..., R], *inputs: Any, variant: Hashable = None) -> R:
        """``function(*inputs)``, without its gradient. Its tensors hold until the next call.

        Args:
            inputs: tensors, or tuples and mappings of them.
            variant: tells apart what ``function`` does otherwise than by its inputs.
        """
        tensors = [*_tensors(inputs)]
        if (memory := self._reads_from()) != self._memory:
            self._recordings.clear()
            self._memory = memory
        key = (variant, tuple((tensor.shape, tensor.dtype) for tensor in tensors))
        found = self._recordings.get(key)
        if found is None:
            if self._failed or len(self._recordings) == MOST_GRAPHS:
                return function(*inputs)
            try:
                found = _recorded(function, inputs, self._agent._device)
            except RuntimeError as error:  # PyTorch has no narrower one
                self._failed = True
                warnings.warn(
                    f"updates are made without CUDA graphs, as one could not be recorded: {error}", stacklevel=2
                )
                return function(*inputs)
            self._recordings[key] = found
        else:
            for held, given in zip(_tensors(found.inputs), tensors, strict=True):
                held.copy_(given, non_blocking=True)
        found.graph.replay()
        outputs: R = found.outputs
        return outputs

    def _reads_from(self) -> tuple[int, ...]:
        """Where the agent's vectors lie: a graph reads and writes there, wherever they are later."""
        vectors = [
            vector
            for network in self._agent.networks.values()
            for vector in (network.parameters.vector, network.gradient, *network.target_vectors())
        ]
        return (*(vector.data_ptr() for vector in vectors), self._agent._normalizer.reads_from())


def cuda_graphs(agent: Recordable) -> CudaGraphs | None:
    """For an agent on CUDA whose class itself says ``recordable``; a class made of it may have other losses. None: its
    updates are made kernel by kernel, as with a memory or an encoder of one's own."""
    config = agent._config
    able = is_recordable(type(agent)) and not config.network and config.memory == "none"
    return CudaGraphs(agent) if able and agent._device.type == "cuda" else None


def is_recordable(agent: type) -> bool:
    """Whether this very class says that its losses can be recorded."""
    return bool(vars(agent).get("recordable", False))


def run(graphs: CudaGraphs | None, function: Callable[..., R], *inputs: Any, variant: Hashable = None) -> R:
    """``CudaGraphs.run`` where there are graphs, else ``function(*inputs)``."""
    return function(*inputs) if graphs is None else graphs.run(function, *inputs, variant=variant)


def _recorded(function: Callable[..., Any], inputs: Any, device: torch.device) -> Recording:
    with torch.cuda.device(device):
        held = _copied(inputs)
        current, side = torch.cuda.current_stream(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(current)
        with torch.cuda.stream(side):
            for _ in range(WARM_UP_CALLS):
                function(*held)
        current.wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        # The outer block restores the stream where the capture fails. A thread may fetch batches meanwhile.
        with torch.cuda.stream(current), torch.cuda.graph(graph, stream=side, capture_error_mode="thread_local"):
            outputs = function(*held)
    return Recording(graph, held, _detached(outputs))


def _tensors(value: Any) -> Iterator[Tensor]:
    """All tensors in tuples and mappings, in order."""
    if isinstance(value, Tensor):
        yield value
    elif value is not None:
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from _tensors(part)


def _copied(value: Any) -> Any:
    return _mapped(value, torch.clone)


def _detached(value: Any) -> Any:
    return _mapped(value, Tensor.detach)


def _mapped(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The same tuples and mappings, of changed tensors."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, Mapping):
        return {name: _mapped(part, change) for name, part in value.items()}
    if value is None:
        return None
    parts = [_mapped(part, change) for part in value]
    return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
