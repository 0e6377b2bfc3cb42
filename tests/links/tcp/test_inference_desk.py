"""What the learner's side counts of a worker's requests."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import numpy as np

from apexrl.links.local.inference import InferenceLink
from apexrl.links.tcp import frames
from apexrl.links.tcp.inference_desk import InferenceTraffic
from apexrl.spec import Field

FIELDS = {
    "observation": Field((2,), "float32"),
    "reward": Field((), "float32"),
    **{name: Field((), "bool") for name in ("terminated", "truncated", "starts", "idle")},
}
STARTS = [[1, 1, 1, 1], [0, 0, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0]]
IDLE = [[0, 0, 0, 0], [0, 0, 0, 0], [0, 1, 1, 1], [1, 1, 1, 1]]


def test_a_step_of_an_agent_that_takes_no_part_is_no_step() -> None:
    link = InferenceLink(FIELDS, {"action": Field((), "int64")}, workers=1, splits=(4,))
    server, over, counted = link.server(), threading.Event(), list[int]()

    class Worker:
        """Asks as often as there are rows above, each time after its answer, and goes."""

        asked = 0

        def readable(self, seconds: float) -> bool:
            return True

        def send(self, *given: Any, **more: Any) -> None: ...

        def receive(self, most: int) -> tuple[Any, ...]:
            if self.asked == len(STARTS):
                over.set()
                return frames.PING, 0, b"", b""
            if self.asked:
                server.answer(server.read(server.pending()), {"action": np.zeros(4, np.int64)})
                traffic._end.answered()
                traffic._end.take(0)
            columns = {name: np.zeros((4, *field.shape), field.dtype) for name, field in FIELDS.items()}
            columns["starts"][:], columns["idle"][:] = STARTS[self.asked], IDLE[self.asked]
            self.asked += 1
            return frames.REQUEST, 0, b"", b"".join(columns[name].tobytes() for name in FIELDS)

    peer: Any = Worker()
    hello: Any = SimpleNamespace(worker=0, generation=1)
    traffic = InferenceTraffic(link, peer, hello, over, counted.append)
    traffic.receive()
    assert counted == [0, 4, 1, 0]
