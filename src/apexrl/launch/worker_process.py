"""The main function of a worker process: makes the context and the role, and steps it until told to stop."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from apexrl.config import Config
from apexrl.errors import AgentError, ApexrlError, ConfigError, FencedError, NonFiniteError, SpecError, said_by
from apexrl.launch.stall_dump import dump_on_request
from apexrl.links.local.control_board import ControlBoard
from apexrl.links.local.role_context import SharedContext, WorkerIdentity
from apexrl.links.printable import host_name
from apexrl.roles.role_traits import traits_of
from apexrl.run.atomic_files import SilentStream
from apexrl.run.identity import run_of
from apexrl.run.log_lines import JsonStream
from apexrl.run.status import Level
from apexrl.topologies.program import Factory

FATAL = (NonFiniteError, ConfigError, SpecError, AgentError, FencedError)
"""Errors that a restart would only repeat: they end the run."""

_TEXT = 32_000  # characters of a traceback that travel
_PACKAGE = Path(__file__).parents[1]
_IDLE_SECONDS = 0.005
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3  # of <malloc.h>
_KEPT_BYTES, _LARGEST_KEPT_BYTES = 256 << 20, 32 << 20  # the second is the most that glibc takes
_KEPT_HEAP_BYTES = 128 << 20  # twice one of a thread's heaps, which are given back only where this much is left beside


@dataclass(frozen=True)
class Assignment:
    """Everything that one worker needs."""

    worker: WorkerIdentity
    board: ControlBoard
    row: int
    factory: Factory
    ports: Mapping[str, Any]
    nice: int = 0
    labels: Mapping[str, Any] = field(default_factory=dict)
    """Of the lines that it prints, as JSON; empty: they stay as they are."""


def work(channel: socket.socket, assignment: Assignment) -> int:
    """Run a worker; returns the exit code. The supervisor receives an error as a message with its traceback."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the supervisor decides when to stop
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    faulthandler.enable()
    dump_on_request()
    label_output(assignment.labels)
    os.nice(assignment.nice)
    keep_memory()
    row = assignment.board.row(assignment.row)
    row.begin(os.getpid(), assignment.worker.generation)
    row.heartbeat = time.monotonic()
    context = SharedContext(assignment.worker, assignment.board, assignment.row, channel)
    return run_role(context, assignment.factory, assignment.ports)


def log_labels(config: Config, worker: WorkerIdentity) -> dict[str, Any]:
    """The labels of what a worker prints; none: its lines stay as they are."""
    if config.log_format != "json":
        return {}
    host = host_name()
    run = run_of(config.name, worker.folder, host)
    return {"run": run, "host": host, "role": worker.role, "index": worker.index, "generation": worker.generation}


def label_output(labels: Mapping[str, Any]) -> None:
    """Let what is printed go to the log, as JSON lines if there are labels. A full disk shall end no environment."""
    for name, level in (("stdout", "info"), ("stderr", "warning")):
        stream: Any = SilentStream(getattr(sys, name))
        setattr(sys, name, JsonStream(stream, cast("Level", level), labels) if labels else stream)


def run_role(context: SharedContext, factory: Factory, ports: Mapping[str, Any]) -> int:
    """Make a role and let it step until it is told to stop; returns the exit code. An error becomes a message."""
    activity = traits_of(factory).work.activity
    try:
        role = factory(context, **ports)
        while not context.should_stop():
            if role.step():
                context.show(activity)
            else:
                context.show("waiting")
                time.sleep(_IDLE_SECONDS)
        context.show(activity)
        role.close()
    except Exception as error:
        context.send("error", **describe(error))
        print(traceback.format_exc(), flush=True)
        return 1
    return 0


def keep_memory() -> None:
    """glibc: freed memory stays with the process. It would go back to the system after every update and come again page
    by page, zeroed: of a small update with two threads that was a fifth. The pad is address space, no memory; what a
    thread has used at most stays with it."""
    if sys.platform == "linux" and hasattr(ctypes.CDLL(None), "mallopt"):
        for what, size in (
            (_M_MMAP_THRESHOLD, _LARGEST_KEPT_BYTES),
            (_M_TRIM_THRESHOLD, _KEPT_BYTES + _KEPT_HEAP_BYTES),  # the pad counts as free
            (_M_TOP_PAD, _KEPT_HEAP_BYTES),
        ):
            ctypes.CDLL(None).mallopt(what, size)


def describe(error: BaseException) -> dict[str, Any]:
    """An error as the values of an ``error`` message."""
    said = f"{type(error).__name__}: {said_by(error)}"[:_TEXT]
    return {"error": said, "traceback": _where(error, said)[-_TEXT:], "fatal": isinstance(error, FATAL)}


def _where(error: BaseException, said: str) -> str:
    """An error and where it came from, for a human: of one of ours what it says, and the lines of code that is not
    ours, and the last one of what it came from, unless we raised that too; of another the traceback. The whole
    traceback is in the worker's log."""
    if not isinstance(error, ApexrlError):
        return "".join(traceback.format_exception(error))
    source = error.__cause__ or error
    frames = traceback.extract_tb(source.__traceback__)
    last = [] if isinstance(source, ApexrlError) else frames[-1:]
    shown = [one for one in frames if one in last or not Path(one.filename).is_relative_to(_PACKAGE)]
    return "\n".join([said, *(line.rstrip() for line in traceback.format_list(shown))])
