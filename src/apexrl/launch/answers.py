"""Answers of short-lived processes of the fork server: looks at the environment and the agent, before a run."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable
from typing import Any

from apexrl.config import Config
from apexrl.errors import EnvError, WorkerError
from apexrl.launch.fork_client import Born, Died, ForkClient, pickled
from apexrl.launch.interrupts import Interrupts
from apexrl.launch.stall_dump import START
from apexrl.links.local import worker_messages
from apexrl.links.local.stall_detector import StallDetector

_MAKING = "making the environment"


class Answers:
    """Asks processes of ``server``, one after the other. While it does, nobody else hears the server's events.

    Args:
        interrupts: one ends the waiting, as KeyboardInterrupt.
        starter: watches the server.
        tag: of the processes.
    """

    def __init__(
        self, config: Config, interrupts: Interrupts, server: ForkClient, starter: StallDetector, tag: str
    ) -> None:
        self._config, self._interrupts, self._server, self._starter, self._tag = (
            config, interrupts, server, starter, tag,
        )  # fmt: skip
        self._ticket = 0  # below those of workers

    def of(self, work: Callable[..., int], args: tuple[Any, ...], what: str = _MAKING) -> worker_messages.Message:
        """The first message that ``work(channel, *args)`` sends from a process of its own.

        Raises:
            EnvError: the process ended without one, or took longer than ``env_timeout``, by ``what`` it did.
        """
        timeout = self._config.actor.env_timeout
        if (answer := self.within(timeout, work, args, what)) is None:
            raise EnvError(
                f"{what} took longer than {timeout:g} s (--env-timeout): raise it, or look at what its constructor "
                "or its close() waits for"
            )
        return answer

    def within(
        self, seconds: float, work: Callable[..., int], args: tuple[Any, ...], what: str = _MAKING
    ) -> worker_messages.Message | None:
        """As ``of``; None: no message came within ``seconds``, and the process is killed.

        Raises:
            EnvError: the process ended without one.
        """
        self._ticket -= 1
        ours, theirs = worker_messages.channel()
        with ours, theirs:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            try:
                self._server.fork(self._ticket, pickled((work, args)), self._tag, theirs, nowhere)
            finally:
                os.close(nowhere)
            theirs.close()
            deadline: float | None = None
            pid = 0
            death: Died | None = None
            while True:
                if heard := worker_messages.receive(ours):
                    return heard[0]
                if death is not None:
                    how = f" (killed by signal {-death.status})" if death.status < 0 else ""
                    raise EnvError(f"{what} ended its process{how}\n{self._server.complaints()}".rstrip())
                if self._interrupts.count:
                    raise KeyboardInterrupt
                began = self._starter.look(self._server.beats, time.monotonic())
                if 0 < START * self._config.stall_timeout < began and not self._server.ready:
                    raise WorkerError(f"the process that starts workers has not begun within {began:.0f} s")
                if deadline is None and self._server.ready:
                    deadline = time.monotonic() + seconds
                if deadline is not None and time.monotonic() > deadline:
                    if pid:
                        os.kill(pid, signal.SIGKILL)
                    return None
                select.select([self._server], [], [], 0.02)
                for news in self._server.events():
                    if news.ticket == self._ticket:
                        pid = news.pid if isinstance(news, Born) else 0
                        death = news if isinstance(news, Died) else None
