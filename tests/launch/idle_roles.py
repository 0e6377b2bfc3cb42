"""Roles that do next to nothing, for tests of the supervisor: they start in milliseconds and fail as they are told."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

from apexrl import roles
from apexrl.errors import EnvError, NonFiniteError
from apexrl.links.local.tunable_count import TunableCount
from apexrl.protocols import Context


class Counts:
    """Counts environment steps; ``deeds`` maps "index.generation" (or "*") to what that generation shall do."""

    def __init__(
        self, context: Context, deeds: dict[str, str], steps: int = 1, pid_file: str = "", **_queues: int
    ) -> None:
        self._context = context
        self._deed = deeds.get(f"{context.index}.{context.generation}", deeds.get("*", ""))
        self._steps = steps
        self._turns = 0
        if self._deed == "spawn":
            for own_session in (False, True):
                child = subprocess.Popen(["sleep", "3600"], start_new_session=own_session)
                with Path(pid_file).open("a") as file:
                    file.write(f"{child.pid}\n")
        if self._deed == "raise at once":
            raise EnvError("no licence")
        if self._deed == "begin slowly":
            time.sleep(2.5)
        if self._deed == "never begin":
            time.sleep(3600)
        if self._deed == "exit at once":
            os._exit(3)
        if self._deed == "hang at once":
            with context.env_call():
                time.sleep(3600)
        context.send("log", text=f"born {context.name}.{context.generation} {os.getpid()} {context.seed}")

    def step(self) -> bool:
        self._turns += 1
        if self._deed == "raise":
            raise EnvError(f"broken in {self._context.name}")
        if self._deed == "not finite":
            raise NonFiniteError("the loss is nan")
        if self._deed in ("kill", "terminate") and self._turns == 3:
            os.kill(os.getpid(), signal.SIGKILL if self._deed == "kill" else signal.SIGTERM)
        if self._deed == "exit" and self._turns == 3:
            print("last words", flush=True)
            sys.stdout.flush()
            os._exit(7)
        if self._deed == "stand still" and self._turns == 3:
            time.sleep(3600)
        if self._deed == "keep the interpreter" and self._turns == 3:
            re.match("(a+)+$", "a" * 60 + "b")  # for years
        if self._deed == "stop" and self._turns == 3:
            os.kill(os.getpid(), signal.SIGSTOP)
        if self._deed == "step for long" and self._turns == 3:
            with self._context.env_call():
                time.sleep(2.5)
        if self._deed == "hang" and self._turns == 3:
            with self._context.env_call():
                time.sleep(3600)
        time.sleep(0.005)
        self._context.count(env_steps=self._steps)
        return True

    def close(self) -> None:
        if self._deed == "never stops":
            time.sleep(3600)
        if self._deed == "write for long":
            time.sleep(2.5)
        self._context.send("log", text=f"closed {self._context.name} {'hurried' if self._context.hurried() else ''}")


class Actor(Counts):
    traits = roles.Actor.traits


class Learner(Counts):
    traits = replace(roles.Learner.traits, writes_checkpoints=False)

    def step(self) -> bool:
        self._context.count(updates=1)
        return super().step()


class CheckpointWriter(Learner):
    """A learner with the grace period of one that writes checkpoints."""

    traits = roles.Learner.traits


class Evaluator(Counts):
    traits = replace(roles.Evaluator.traits, writes_to_folder=False)


class Turned(Learner):
    """Tells where its knob stands."""

    def __init__(self, context: Context, knob: TunableCount, deeds: dict[str, str]) -> None:
        super().__init__(context, deeds)
        self._knob = knob
        self._seen = 0

    def step(self) -> bool:
        if self._knob.value != self._seen:
            self._seen = self._knob.value
            self._context.send("log", text=f"threads {self._seen}")
        return super().step()
