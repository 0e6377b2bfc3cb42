"""Updates by CUDA graphs, beside the same ones kernel by kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import torch
from signal_runs import Game, Given, asks
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from apexrl.agents import AGENTS, agent_class, cuda_graphs
from apexrl.agents.cuda_graphs import CudaGraphs, Recording
from apexrl.agents.sac import SAC

UPDATES = 24  # two of which are measured, and so made without graphs
RECORDABLE = [name for name in AGENTS if vars(agent_class(name)).get("recordable")]
CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


class Reads(TorchDispatchMode):
    """Notes which memory is read that was not made meanwhile: storage -> shape of what lies there."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[int, tuple[int, ...]] = {}
        self._made: dict[int, Tensor] = {}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for tensor in tensors_in((args, kwargs or {})):
            if storage(tensor) not in self._made:
                self.found.setdefault(storage(tensor), tuple(tensor.shape))
        result = function(*args, **(kwargs or {}))
        for tensor in tensors_in(result):
            if storage(tensor) not in self.found:
                self._made[storage(tensor)] = tensor  # held, so that nothing else takes its place
        return result


def storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def tensors_in(value: Any, depth: int = 0) -> Iterator[Tensor]:
    """All that are not empty, in collections and in attributes of what is ours."""
    if isinstance(value, Tensor):
        if value.numel():
            yield value
        return
    parts: Any = ()
    if isinstance(value, Mapping):
        parts = value.values()
    elif isinstance(value, list | tuple):
        parts = value
    elif type(value).__module__.startswith("apexrl") and hasattr(value, "__dict__"):
        parts = vars(value).values()
    for part in parts if depth < 6 else ():
        yield from tensors_in(part, depth + 1)


class Again:
    """In the place of a graph: the function that was recorded, on the inputs that it was recorded with."""

    def __init__(self, function: Callable[..., Any], inputs: Any, outputs: Any) -> None:
        self._function, self._inputs, self._outputs = function, inputs, outputs

    def replay(self) -> None:
        found = cuda_graphs._detached(self._function(*self._inputs))
        for held, new in zip(cuda_graphs._tensors(self._outputs), cuda_graphs._tensors(found), strict=True):
            held.copy_(new)


def recorded_again(function: Callable[..., Any], inputs: Any, device: torch.device) -> Recording:
    held = cuda_graphs._copied(inputs)
    outputs = cuda_graphs._copied(cuda_graphs._detached(function(*held)))
    return Recording(Again(function, held, outputs), held, outputs)  # type: ignore[arg-type]


def trained(game: Game, device: str, batches: list[Given], graphs: Any) -> tuple[list[Tensor], list[Tensor], Any]:
    """All vectors of an agent after ``UPDATES``, the priorities of these, and what became of ``graphs(agent)``."""
    agent: Any = agent_class(game.name)(game.spec, game.config.agent, device, 0)
    agent._graphs = graphs(agent)
    priorities = []
    for number in range(UPDATES):
        learned = agent.update(agent.prepare(batches[number % len(batches)]))
        priorities.append(torch.from_numpy(learned.priorities.copy()))
    vectors = [vector.cpu() for network in agent.networks.values() for vector in network.vectors().values()]
    return vectors, priorities, agent._graphs


def none(agent: Any) -> None:
    """Kernel by kernel."""


@pytest.mark.parametrize("name", RECORDABLE)
def test_what_is_recorded_depends_on_its_inputs_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_graphs, "_recorded", recorded_again)
    game = Game(name, "vector", asks(name)[0])
    batches = game.batches(7)
    plain, said, _ = trained(game, "cpu", batches, none)
    vectors, also_said, graphs = trained(game, "cpu", batches, CudaGraphs)
    game.close()
    assert graphs._recordings
    torch.testing.assert_close(vectors, plain, rtol=0, atol=0)
    torch.testing.assert_close(also_said, said, rtol=0, atol=0)


@pytest.mark.parametrize("shown", ["vector", "image"])
@pytest.mark.parametrize(
    ("name", "changes"),
    [
        *((name, {}) for name in RECORDABLE),
        ("dueling_dqn", {"conservative_weight": 1.0}),
        ("sac", {"normalize_observations": True, "normalize_returns": True}),
    ],
)
def test_what_is_read_stays_where_it_is(
    name: str, changes: dict[str, Any], shown: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A graph reads its inputs, vectors that its agent tells, and else what the agent holds for ever."""
    game = Game(name, shown, asks(name)[0], **changes)
    agent: Any = agent_class(name)(game.spec, game.config.agent)
    reads = Reads()

    def noted(function: Callable[..., Any], inputs: Any, device: torch.device) -> Recording:
        function(*inputs)  # what is made at first use is there from here on
        with reads:
            outputs = function(*inputs)
        given = {storage(tensor) for tensor in tensors_in(inputs)}
        reads.found = {where: shape for where, shape in reads.found.items() if where not in given}
        return Recording(Again(function, inputs, outputs), inputs, outputs)  # type: ignore[arg-type]

    monkeypatch.setattr(cuda_graphs, "_recorded", noted)
    agent._graphs = CudaGraphs(agent)
    for batch in game.batches(2):  # the first is measured
        agent.update(agent.prepare(batch))
    game.close()
    agent.load(agent.weights())
    vectors = [
        vector
        for network in agent.networks.values()
        for vector in (network.parameters.vector, network.gradient, *network.target_vectors())
    ]
    lasting = {storage(tensor) for tensor in (*vectors, *tensors_in(agent))}
    assert reads.found
    assert {shape for where, shape in reads.found.items() if where not in lasting} == set()


@CUDA
@pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS")  # PyTorch's first backward pass in a process
@pytest.mark.parametrize("shown", ["vector", "image"])
@pytest.mark.parametrize("name", RECORDABLE)
def test_graphs_make_the_same_updates(name: str, shown: Any) -> None:
    game = Game(name, shown, asks(name)[0])
    batches = game.batches(7)
    plain, said, _ = trained(game, "cuda", batches, none)
    vectors, also_said, graphs = trained(game, "cuda", batches, cuda_graphs.cuda_graphs)
    game.close()
    assert graphs._recordings
    torch.testing.assert_close(also_said, said, rtol=1e-2, atol=1e-3)
    torch.testing.assert_close(vectors, plain, rtol=1e-2, atol=1e-3)


def test_an_agent_made_of_another_is_not_recorded() -> None:
    """Its losses may draw or wait; only the class that says so is known to do neither."""

    class Mine(SAC):
        pass

    game = Game("sac", "vector", "box")
    for kind, able in ((SAC, True), (Mine, False)):
        agent: Any = kind(game.spec, game.config.agent)
        assert agent._graphs is None  # on the CPU
        agent._device = torch.device("cuda")
        assert (cuda_graphs.cuda_graphs(agent) is not None) == able
    game.close()


def test_a_function_that_cannot_be_recorded_is_called_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    game = Game("sac", "vector", "box")
    agent: Any = SAC(game.spec, game.config.agent)
    game.close()
    graphs = CudaGraphs(agent)
    one = torch.ones(2)

    def fails(*given: Any) -> Recording:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(cuda_graphs, "_recorded", fails)
    with pytest.warns(UserWarning, match="without CUDA graphs"):
        assert graphs.run(torch.neg, one).tolist() == [-1.0, -1.0]
    assert graphs.run(torch.neg, one).tolist() == [-1.0, -1.0]  # not tried again: no other warning
