"""Requests that say which they are, answers made from all of them, and processes that ask and answer for ever."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from apexrl.links.local.inference import InferenceLink, RequestServer
from apexrl.spec import Field

REQUEST = {"observation": Field((3,), "float32"), "starts": Field((), "bool")}
REPLY = {"action": Field((2,), "int64")}
WORKERS, SPLITS = 2, (2, 1)
GROUPS = WORKERS * len(SPLITS)


def make(workers: int = WORKERS, splits: tuple[int, ...] = SPLITS) -> InferenceLink:
    return InferenceLink.make(shared=True, request=REQUEST, reply=REPLY, workers=workers, splits=splits)


def write(columns: dict[str, Any], number: int) -> None:
    """A request that says which it is, in every row another."""
    rows = len(columns["starts"])
    columns["observation"][...] = number + np.arange(3 * rows).reshape(rows, 3) / 64.0
    columns["starts"][...] = number % 2 == 0


def actions_for(observation: Any) -> Any:
    """What the server answers: for every row another number, made from all of it."""
    return (64 * np.stack([observation[:, 0], observation.sum(axis=1)], axis=1)).astype(np.int64)


def expected(number: int, rows: int) -> Any:
    return actions_for((number + np.arange(3 * rows).reshape(rows, 3) / 64.0).astype(np.float32))


def serve(server: RequestServer) -> int:
    """Answer everybody; returns how many groups that were."""
    groups = server.pending()
    if groups:
        requests = server.read(groups)
        server.answer(requests, {"action": actions_for(requests.columns["observation"])})
    return len(groups)


def ask_on_and_on(link: InferenceLink, generation: int, asked: Any) -> None:
    """A worker process: asks for ever, and dies if an answer is another's."""
    worker = link.worker(0, generation)
    number = 1000 * generation
    current = [0] * len(SPLITS)
    while True:
        for split in range(len(SPLITS)):
            columns = worker.room(split)
            if columns is not None:
                number += 1
                write(columns, number)
                current[split] = number
                worker.ask(split, 0.0)
        for split in worker.answered():
            if not np.array_equal(worker.take(split)["action"], expected(current[split], SPLITS[split])):
                os._exit(3)
            asked.value += 1
        worker.wait(0.1)


def answer_on_and_on(link: InferenceLink) -> None:
    server = link.server()
    while True:
        serve(server)
        server.wait(0.1)
