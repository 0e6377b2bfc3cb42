"""Checkpoints as a role writes them: restored when it starts, written periodically and at the end."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np

from apexrl.errors import ApexrlError, ConfigError, LinkError, NonFiniteError, SnapshotError, SpecError
from apexrl.links.backoff import Backoff
from apexrl.links.local.stall_detector import StallDetector
from apexrl.protocols import NORMALIZER, Agent, Arrays, Context, WeightsReader
from apexrl.roles.actor import FIRST_VERSION
from apexrl.run import checkpoint
from apexrl.run.folder import RunFolder
from apexrl.spec import Array

LAST_SECONDS = 10.0
"""How long the last one of a run is tried: a supervisor waits for longer."""

_PAUSES = 5.0, 300.0  # least and longest between attempts, in seconds of the context's clock
_LAST_PAUSE = 0.5
_BEAT_SECONDS = 0.5
_SLOW_SECONDS = 60.0  # of one write, after which it is told
_LONGEST_SECONDS = 1800.0  # of one write, after which the role is thought to stand still


def restore(
    context: Context, agent: Agent, weights: WeightsReader, name: str = "", counts: bool = True, initial: str = ""
) -> int:
    """Let ``agent`` go on where the run was: its newest checkpoint; else, where no update was made, the ``initial``
    weights, if there are some; else the published weights; else the best ones, where updates were made; else it stays
    as it is.

    On Ray the counters are kept elsewhere, and a checkpoint may hold updates that were not counted there, because the
    learner was lost. They are counted now, so that numbers of checkpoints and versions do not go back.

    Args:
        name: of the agent, for errors.
        counts: this role counts updates.
        initial: run folder or file (``take_up_initial``).

    Returns:
        Updates made so far, also where they have yet to be counted.

    Raises:
        SnapshotError: there are checkpoints, but none can be read.
        SpecError: they are of another agent or network.
    """
    folder = RunFolder(context.folder).checkpoints
    name = name or type(agent).__name__
    changed = (
        "Resume with the agent, network and environment that it was trained with: look for what was changed, in "
        f"{RunFolder(context.folder).config_path} or besides"
    )
    found = checkpoint.load_latest(folder)
    if found is not None:
        with _fits(str(found.path), name, changed):
            agent.load_state_dict(found.arrays)
        known = context.total("updates")
        made = max(int(found.metadata["updates"]), known)
        if counts:
            context.count(updates=made - known)
        for reason in found.skipped:
            context.send("log", text=f"passed over a checkpoint: {reason}", level="warning")
        context.send("log", text=f"{context.name} restored {found.path.name}")
        return made
    newest = weights.latest()
    if initial and not context.total("updates") and (newest is None or newest[0] <= FIRST_VERSION):
        taken = take_up_initial(agent, initial, name)
        context.send("log", text=f"{context.name} begins with the weights in {taken}")
        return 0
    if newest is not None:
        version, arrays = newest
        _take_up(agent, arrays, context.total("updates"))
        context.send("log", text=f"{context.name} took up the published weights, version {version}")
    elif not (updates := context.total("updates")):
        return 0
    elif (best := checkpoint.best(folder)) is not None:
        arrays = checkpoint.load(best).arrays
        with _fits(str(best), name, changed):
            _take_up(agent, arrays, updates)
        text = (
            f"there is no checkpoint but {best.name}: {context.name} goes on from it, with a new optimizer and target"
        )
        context.send("log", text=text, level="warning")
    else:  # its host was lost before the first checkpoint: a resumed run is refused (``check_left``)
        text = (
            f"{context.name} begins with new weights: of the {updates} updates made so far there is neither a "
            f"checkpoint in {folder} nor are there published weights"
        )
        context.send("log", text=text, level="warning")
    return context.total("updates")


def take_up_initial(agent: Agent, initial: str, name: str) -> Path:
    """Let ``agent``, which has made no update, begin with the best weights of a run, or with those in a file.

    Returns:
        The file.

    Raises:
        ConfigError: there is no such file, or it is a checkpoint of more than weights.
        SnapshotError: it cannot be read.
        SpecError: it is of another agent or network.
    """
    path = Path(initial)
    if "://" in initial:
        raise ConfigError(f"--initial-weights {initial} is a URL: copy the run to this machine and give its folder")
    if path.is_dir():
        folder = RunFolder(path).checkpoints if RunFolder(path).checkpoints.is_dir() else path
        if (found := checkpoint.best(folder)) is None:
            raise ConfigError(f"--initial-weights {path}: there are no best weights in {folder}")
        path = found
    elif not path.is_file() or path.suffix != ".safetensors":
        raise ConfigError(f"--initial-weights {path}: there is no such run folder or .safetensors file")
    taken = checkpoint.load(path)
    if taken.kind != "weights":
        raise ConfigError(f"--initial-weights {path} holds a learner's whole state: give {checkpoint.BEST}, or its run")
    with _fits(
        f"--initial-weights {path}",
        name,
        "Networks, normalisation, and the forms of observations and actions must be those of the run that wrote it",
    ):
        has, wanted = taken.arrays.keys(), agent.weights().keys()
        if missing := sorted(wanted - has):
            raise SpecError(f"it lacks {missing[0]!r}" + f" and {len(missing) - 1} more" * (len(missing) > 1))
        if more := sorted(has - wanted):
            raise SpecError(f"it has {more[0]!r}" + f" and {len(more) - 1} more" * (len(more) > 1) + ", unknown here")
        _take_up(agent, taken.arrays, int(taken.metadata.get("updates", 0)))
    return path


def _take_up(agent: Agent, weights: Arrays, updates: int) -> None:
    """Go on from weights alone. Running averages among them count as of that many batches: as of none, the next batch
    would replace them."""
    agent.load(weights)
    batches = f"{NORMALIZER}/optimizer/steps"
    if updates and batches in (state := agent.state_dict()):
        agent.load_state_dict({**state, batches: np.array(updates, np.float32)})


def check_left(folder: RunFolder, updates: int) -> None:
    """Refuse to resume a run that has learned, but of whose weights nothing is left: it would begin anew, and count on.

    Args:
        updates: how many the run had made by its counters.

    Raises:
        SnapshotError: there is no checkpoint.
    """
    kept = folder.checkpoints
    if not updates or checkpoint.latest(kept) or checkpoint.best(kept):
        return
    what = "holds no checkpoint" if kept.is_dir() else "is not there"
    raise SnapshotError(
        f"{folder.path} cannot be resumed: {updates} updates are recorded, but {kept} {what}. Either its checkpoints "
        "were moved or deleted: put them back, at least the newest generation-….safetensors. Or the run ended "
        "before its first one (--checkpoint-seconds says how often they are written): its weights are lost. Start a "
        f"new run with the same settings: apexrl train {folder.config_path} --name {folder.path.name}-again"
    )


@contextmanager
def _fits(path: str, name: str, advice: str) -> Iterator[None]:
    """Whatever an agent says of a checkpoint that it cannot take up names the file and the agent, before ``advice``."""
    try:
        yield
    except Exception as error:  # of an agent of the user's own it may be any
        why = str(error) if isinstance(error, ApexrlError) else f"{type(error).__name__}: {error}"
        raise SpecError(f"{path} does not fit agent {name}: {why}. {advice}") from error


class Saving:
    """When a role writes what it keeps, and what becomes of it where it cannot be written: that is told once, counted,
    and tried again. A disk that is full is no reason to lose the weights in memory. Nor may anything be written while
    another learner may hold the run's lease; a generation that is fenced is not caught here (``FencedError``).

    Args:
        seconds: between two of them, by the context's clock.
        what: is written; for messages.
        kept: how many of them, to say how much room they need; 0: one, in place.
    """

    def __init__(self, context: Context, seconds: float, what: str = "a checkpoint", kept: int = 0) -> None:
        self._context = context
        self._seconds = seconds
        self._what = what
        self._kept = kept
        self._failures = 0  # in a row
        self._pauses = Backoff(*_PAUSES)
        self._next = context.clock() + seconds

    @property
    def due(self) -> bool:
        return self._context.clock() >= self._next

    def now(self, write: Callable[[], object]) -> bool:
        """Let ``write`` do it, and say when the next time is. False: it could not. A disk that answers late does not
        cost the role its process: while it waits, a thread gives its signs of life."""
        try:
            with self._signs_of_life():
                write()
        except (OSError, SnapshotError, LinkError, NonFiniteError) as error:
            pause = _PAUSES[0] if isinstance(error, LinkError) else self._pauses.next()
            self._next = self._context.clock() + pause
            if not self._failures:
                self._tell(error, "The run goes on, and it is tried again")
            self._failed()
            return False
        self._next = self._context.clock() + self._seconds
        if self._failures:
            text = f"{self._context.name} has written {self._what} again, after {self._failures} failed attempts"
            self._context.send("log", text=text)
            self._failures = 0
            self._pauses.reset()
        return True

    def last(self, write: Callable[[], object]) -> None:
        """At the end of a run: ``LAST_SECONDS`` are all the time that there is. On a full disk older checkpoints give
        way to it, but for the newest."""
        began = time.monotonic()
        while True:
            try:
                write()
                return
            except (OSError, SnapshotError, LinkError, NonFiniteError) as error:
                self._failed()
                if isinstance(error, NonFiniteError):
                    self._lose(error, "This checkpoint is lost")
                    return
                if isinstance(error, LinkError) and not self._context.fence.paused:
                    self._tell(error, "The other learner writes the checkpoints now")
                    return
                if _full(error) and self._kept and self._make_room():
                    continue
                if (tried := time.monotonic() - began) >= LAST_SECONDS:
                    self._lose(error, f"It was tried for {tried:.0f} s, and is lost")
                    return
            self._context.should_stop()  # also the heartbeat
            time.sleep(_LAST_PAUSE)

    @contextmanager
    def _signs_of_life(self) -> Iterator[None]:
        if not self._context.patience:  # it takes turns with others in one process, and nobody watches it
            yield
            return
        written = threading.Event()
        thread = threading.Thread(target=self._beat, args=(written,), name="signs of life", daemon=True)
        thread.start()
        try:
            yield
        finally:
            written.set()
            thread.join()

    def _beat(self, written: threading.Event) -> None:
        still, told = StallDetector(), False
        while not written.wait(_BEAT_SECONDS) and still.look(0.0, time.monotonic()) < _LONGEST_SECONDS:
            self._context.should_stop()
            if still.seconds >= _SLOW_SECONDS and not told:
                told = True
                name, seconds = self._context.name, still.seconds
                text = f"{name} has been writing {self._what} for {seconds:.0f} s, and does nothing else meanwhile"
                self._context.send("log", text=text, level="warning")

    def _failed(self) -> None:
        self._failures += 1
        self._context.count(failed_checkpoints=1)

    def _lose(self, error: Exception, then: str) -> None:
        self._tell(error, then)
        self._context.send("not_saved", what=self._what)

    def _tell(self, error: Exception, then: str) -> None:
        room = f"the {self._kept} that are kept (--checkpoints-kept)" if self._kept else "the one that is there"
        hint = f"There must be room for one more beside {room}. " if _full(error) else ""
        text = f"{self._context.name} could not write {self._what}: {error}. {hint}{then}. {last_good(self._context)}"
        self._context.send("log", text=text, level="warning")

    def _make_room(self) -> bool:
        """Remove the oldest of several checkpoints. False: there is one at most, or it cannot be removed."""
        try:
            *old, _ = checkpoint.numbered(folder_of(self._context))
            self._context.fence.check()  # after the look: nothing that was there then is a successor's
            old[0].unlink()
            old[0].with_suffix(".json").unlink(missing_ok=True)
        except (OSError, LinkError, SnapshotError, ValueError, IndexError):
            return False
        return True


def _full(error: Exception) -> bool:
    cause = error if isinstance(error, OSError) else error.__cause__
    return isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT)


def folder_of(context: Context) -> Path:
    """Where checkpoints go.

    Raises:
        FileNotFoundError: the run folder is gone. It is not made anew: where a disk is to be mounted, it would hide it.
    """
    folder = RunFolder(context.folder)
    if not folder.path.is_dir():
        raise FileNotFoundError(errno.ENOENT, "the run folder is gone", str(folder.path))
    return folder.checkpoints


def write(context: Context, agent: Agent, keep: int) -> None:
    """Write a checkpoint of ``agent``, and keep that many."""
    write_state(context, agent.state_dict(), keep)


def write_state(context: Context, state: dict[str, Array], keep: int) -> None:
    """Write a checkpoint of what an agent's ``state_dict`` gave, and keep that many. A state that is NaN or infinite is
    not written, and pushes no good one out.

    Its number is that of updates ever made, as the version's: it grows over restarts, and so do file names.

    Raises:
        OSError: it could not be written, or what it makes needless not be deleted.
        LinkError: another learner may hold the run's lease.
        FencedError: a newer generation writes here.
        NonFiniteError: names what is NaN or infinite.
    """
    if bad := [name for name, array in state.items() if array.dtype.kind == "f" and not np.isfinite(array).all()]:
        raise NonFiniteError(f"{bad[0]} is NaN or infinite")
    counts = {name: context.total(name) for name in ("updates", "env_steps", "episodes")}
    path = checkpoint.save(folder_of(context), state, counts, keep=keep, fence=context.fence)
    context.send("checkpoint", path=str(path), updates=counts["updates"])


LIVE: Final = "live"
"""Name of the replay that actors write to, in a mix with a dataset."""


def save_replay(context: Context, replay: Any) -> None:
    """Write a replay beside the final checkpoint, as far as this generation may. Of a mix that of the actors is kept: a
    dataset has its files."""
    replay = getattr(replay, "replays", {LIVE: replay})[LIVE]
    path = RunFolder(context.folder).replay_path

    def write() -> None:
        folder_of(context)
        context.fence.check()
        replay.save(path, context.fence.check)

    Saving(context, 0.0, "the replay's snapshot").last(write)


def last_good(context: Context) -> str:
    """Where a run that went wrong can be taken up, for a message."""
    folder = RunFolder(context.folder).checkpoints
    try:
        kept = checkpoint.latest(folder)
    except OSError as error:
        return f"Whether there is a good checkpoint in {folder} cannot be seen ({error.strerror})"
    return f"The last good checkpoint is {kept}" if kept else "No checkpoint was written yet"
