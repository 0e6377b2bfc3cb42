"""The actor host that ``apexrl train --redis`` starts beside its learner, in a process of its own.

Its orders come through standard input, so that the URL shows in no list of processes. When that closes, because the
learner's side has ended, the actor host ends too.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO

from apexrl.config import Config
from apexrl.config.trust import modules
from apexrl.errors import ApexrlError, HeldError, WorkerError
from apexrl.launch.contained_observers import complain
from apexrl.launch.restart_budget import EARLY_SECONDS, Ending, RestartBudget, ending_of
from apexrl.launch.stall_dump import START, stood_still
from apexrl.launch.unnamed_file import unnamed_file
from apexrl.links.local.stall_detector import StallDetector
from apexrl.links.printable import host_name
from apexrl.run.identity import run_of
from apexrl.run.log_lines import LogFormat, json_line
from apexrl.run.observers import IdleObserver
from apexrl.run.status import Level, RunStatus

if TYPE_CHECKING:
    from apexrl.launch.redis_run import Identity

ROLE: Final = "actor-host"
"""Names its log in the learner's run folder."""

_LEAVE_SECONDS: Final = 15.0  # after the run's end, for the actors to go by themselves
_LINE_SECONDS: Final = 10.0
_TAIL_BYTES: Final = 4000
_OUTPUT_BYTES: Final = 1 << 20  # that are kept until they are in the log
_OUTPUT_SECONDS: Final = 5.0
_BEAT_SECONDS: Final = 1.0
_LEAST_STALL_SECONDS: Final = 5.0


class LocalActorHost(IdleObserver):
    """An observer on the learner's side: starts the actor host, restarts it when it is killed or stands still, reports
    when it fails, and waits for it at the end."""

    ours = True

    def __init__(self, url: str, identity: Identity, config: Config) -> None:
        self._output = unnamed_file()  # open as long as this observer
        fcntl.fcntl(self._output, fcntl.F_SETFL, os.O_APPEND)  # it is emptied while others write
        self._read = 0  # bytes of it
        self._unwritten = self._last = b""  # what is not in the log yet; the end of all
        self._output_at = 0.0
        self._keep: Callable[[str, bytes], None] | None = None
        self._folder: Path | None = None
        self._failed = False
        self._tell: Callable[[str, Level], None] = lambda text, level: None
        self._stall_timeout = config.stall_timeout
        self._patience = RestartBudget(config.actor.actor_restarts)
        self._restart_at: float | None = None  # monotonic seconds, while there is no process
        self._options = {
            "url": url,
            "run": identity.name,
            "run_id": identity.run_id,
            "actors": config.actor.actors,
            "gives_way": True,
            "out": config.out,
            "log_format": config.log_format,
            "trust": modules(config),  # what this machine's user has named for the learner may be called by its actors
        }
        self._start()

    def announce(self, tell: Callable[[str, Level], None], keep: Callable[[str, bytes], None]) -> None:
        """Set the functions that report to a human, and that append to the log of a role."""
        self._tell, self._keep = tell, keep

    def _start(self) -> None:
        ours, theirs = os.pipe()
        try:
            os.set_blocking(ours, False)
            self._process = subprocess.Popen(
                _command(theirs),
                pass_fds=[theirs],
                stdin=subprocess.PIPE,
                stdout=self._output,
                stderr=subprocess.STDOUT,
                process_group=0,  # Ctrl-C in the terminal is the learner's to handle
            )
        except BaseException:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
        self._beats, self._beaten, self._still = ours, 0, StallDetector()
        self._restart_at, self._began, self._why = None, time.monotonic(), ""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # its end is noticed, with what it said
            self._process.stdin.write(json.dumps(self._options).encode() + b"\n")
            self._process.stdin.flush()

    def started(self, config: Config, folder: Path) -> None:
        self._folder = folder

    def update(self, _: RunStatus) -> str | None:
        """Ends the run when the actors of this machine have failed."""
        now = time.monotonic()
        if self._restart_at is not None:
            if now >= self._restart_at:
                self._start_again(now)
        elif status := self._process.poll():
            self._handle_end(status, now)
        elif status is None:
            self._watch(now)
        if now >= self._output_at and self._keep is not None:
            self._output_at = now + _OUTPUT_SECONDS
            self._read_output()
            if self._unwritten:
                self._keep(ROLE, self._unwritten)
                self._unwritten = b""
        return "actors failed" if self._failed else None

    def _start_again(self, now: float) -> None:
        """Start the process, or try again later if that fails."""
        try:
            self._start()
        except OSError as error:
            self._patience.ended(0.0, False, "vanished")
            self._tell(f"the actor host of this machine cannot be started again: {error}", "warning")
            self._failed = self._patience.exhausted
            self._restart_at = now + self._patience.pause_seconds

    def _watch(self, now: float) -> None:
        """Kill it when it shows no sign of life."""
        with suppress(BlockingIOError):
            self._beaten += len(os.read(self._beats, 65536))
        limit = max(self._stall_timeout, _LEAST_STALL_SECONDS) * (1.0 if self._beaten else START)
        if self._still.look(self._beaten, now) > limit and self._stall_timeout and not self._why:
            self._why = stood_still(limit, False, self._process.pid).partition("\n")[0]
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)  # its workers end with it

    def _handle_end(self, status: int, now: float) -> None:
        """Handle its end: an error of its own ends the run, anything else leads to a restart."""
        how: Ending = "failed" if self._why else ending_of(status)
        lived = now - self._began
        self._patience.ended(lived, lived > EARLY_SECONDS, how)
        if status > 0 or self._patience.exhausted or self._patience.fails_always:
            self._failed = True
            return
        why = self._why or f"it was killed by signal {-status}"
        self._tell(f"the actor host of this machine: {why}; starting it again", "warning")
        self._restart_at = now + self._patience.pause_seconds
        self._hang_up()

    def _hang_up(self) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        os.close(self._beats)

    def check(self) -> None:
        """Raise WorkerError if it failed before the run was over."""
        if self._failed:
            self._read_output()
            end = self._last.decode(errors="replace").strip()
            raise WorkerError(f"the actor host of this machine has failed:\n{end}")

    def close(self) -> None:
        """Wait until it has ended, and keep the rest of its output in the run folder."""
        if self._restart_at is None:
            self._hang_up()
        try:
            self._process.wait(_LEAVE_SECONDS)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)  # its workers end with it
            self._process.wait()
        if self._folder is not None:
            try:
                (self._folder / "logs").mkdir(exist_ok=True)
                self._read_output()
                with (self._folder / "logs" / f"{ROLE}.log").open("ab") as log:
                    log.write(self._unwritten)
            except OSError as error:  # the run has ended, and that is no reason to say it otherwise
                complain(f"the log of {ROLE} could not be written: {error}")
        self._output.close()

    def _read_output(self) -> None:
        """Read what it has printed; of very much the end. What it prints while the file is emptied is lost."""
        size = os.fstat(self._output.fileno()).st_size
        begin = max(self._read, size - _OUTPUT_BYTES)
        new = os.pread(self._output.fileno(), size - begin, begin)
        self._unwritten = (self._unwritten + new)[-_OUTPUT_BYTES:]
        self._last = (self._last + new)[-_TAIL_BYTES:]
        self._read = size
        if size > _OUTPUT_BYTES:
            os.ftruncate(self._output.fileno(), 0)
            self._read = 0


class LinePrinter(IdleObserver):
    """Prints messages, and the status every few seconds."""

    writes = "standard output"

    def __init__(self, file: TextIO, log_format: LogFormat) -> None:
        self._file = file
        self._json = log_format == "json"
        self._labels = {"run": "", "host": host_name(), "role": "supervisor"}
        self._next = 0.0

    def started(self, config: Config, folder: Path) -> None:
        self._labels["run"] = run_of(config.name, folder, host_name())
        self._print(f"run folder: {folder}")

    def update(self, status: RunStatus) -> None:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _LINE_SECONDS
            rate = status.env_steps_per_second
            self._print(f"{status.phase}: {status.env_steps} steps, {rate:.0f}/s, weights {status.weights_version}")

    def message(self, text: str, level: Level = "info") -> None:
        self._print(text, level)

    def finished(self, summary: Mapping[str, Any]) -> None:
        self._print(f"ended: {summary['stopped_by']}")

    def _print(self, text: str, level: Level = "info") -> None:
        if self._json:
            text = json_line(level, text, self._labels)
        elif level != "info":
            text = f"{level}: {text}"
        print(text, file=self._file, flush=True)


def _command(beats: int) -> list[str]:
    path = [entry or os.getcwd() for entry in sys.path]
    return [sys.executable, "-c", f"import sys; sys.path[:] = {path!r}; from {__name__} import main; main({beats})"]


def main(beats: int) -> None:
    """The main function of the actor host.

    Args:
        beats: descriptor into which it writes a byte every second.
    """
    os.set_blocking(beats, False)
    threading.Thread(target=_beat, args=(beats,), name="beats", daemon=True).start()
    from apexrl.launch.actor_host import join
    from apexrl.launch.interrupts import Interrupts

    began = time.monotonic()
    options = json.loads(sys.stdin.readline())
    printer = LinePrinter(sys.stdout, options["log_format"])
    with Interrupts() as interrupts:

        def wait_for_the_end() -> None:
            while os.read(sys.stdin.fileno(), 1):  # the buffered reader has a lock that an exit would wait for
                pass
            interrupts.count += 1

        threading.Thread(target=wait_for_the_end, name="lifeline", daemon=True).start()
        try:
            join(**options, observers=[printer], interrupts=interrupts, began=began)
        except KeyboardInterrupt:
            pass
        except HeldError as error:  # it was drained: the run goes on without its actors
            print(error, flush=True)
        except ApexrlError as error:
            print(f"{type(error).__name__}: {error}", flush=True)
            sys.exit(1)


def _beat(beats: int) -> None:
    with suppress(BrokenPipeError):
        while True:
            with suppress(BlockingIOError):  # nobody listens at present
                os.write(beats, b".")
            time.sleep(_BEAT_SECONDS)
