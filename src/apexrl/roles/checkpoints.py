"""A run's checkpoints as the role sees them that writes them: taken up when it begins, written now and then."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from apexrl import checkpoint
from apexrl.errors import ApexrlError, SnapshotError, SpecError
from apexrl.protocols import Agent, Context, WeightsReader
from apexrl.run_folder import RunFolder
from apexrl.spec import Array


def restore(context: Context, agent: Agent, weights: WeightsReader, name: str = "", counts: bool = True) -> int:
    """Let ``agent`` go on where the run was: its newest checkpoint; else the published weights; else the best ones,
    where updates were made; else it stays as it is.

    On a cluster books are kept elsewhere, and a checkpoint may be of updates that were never heard of there, as whoever
    made them was lost. They are counted now, so that numbers of checkpoints and versions do not go back.

    Args:
        name: of the agent, for errors.
        counts: this role counts updates.

    Returns:
        Updates made so far, also where they have yet to be counted.

    Raises:
        SnapshotError: there are checkpoints, but none can be read.
        SpecError: they are of another agent or network.
    """
    folder = RunFolder(context.folder).checkpoints
    name = name or type(agent).__name__
    found = checkpoint.load_latest(folder)
    if found is not None:
        with _fits(context, found.path, name):
            agent.load_state_dict(found.arrays)
        known = context.total("updates")
        made = max(int(found.metadata["updates"]), known)
        if counts:
            context.count(updates=made - known)
        for reason in found.skipped:
            context.send("log", text=f"passed over a checkpoint: {reason}", level="warning")
        context.send("log", text=f"{context.name} restored {found.path.name}")
        return made
    if (newest := weights.latest()) is not None:
        version, arrays = newest
        agent.load(arrays)
        context.send("log", text=f"{context.name} took up the published weights, version {version}")
    elif not (updates := context.total("updates")):
        return 0
    elif (best := checkpoint.best(folder)) is not None:
        arrays = checkpoint.load(best).arrays
        with _fits(context, best, name):
            agent.load(arrays)
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


def check_left(folder: RunFolder, updates: int) -> None:
    """Refuse to resume a run that has learned, but of whose weights nothing is left: it would begin anew, and count on.

    Args:
        updates: what its books say that it had made.

    Raises:
        SnapshotError: there is no checkpoint.
    """
    kept = folder.checkpoints
    if not updates or checkpoint.latest(kept) or checkpoint.best(kept):
        return
    what = "holds no checkpoint" if kept.is_dir() else "is not there"
    raise SnapshotError(
        f"{folder.path} cannot be resumed: {updates} updates are recorded, but {kept} {what}. Either its checkpoints "
        "were moved or deleted: put them back, at least the newest update-….safetensors. Or the run ended before its "
        "first one (--checkpoint-seconds says how often they are written): its weights are lost. Start a new run with "
        f"the same settings: apexrl train {folder.config_path} --name {folder.path.name}-again"
    )


@contextmanager
def _fits(context: Context, path: Path, name: str) -> Iterator[None]:
    """Whatever an agent says of a checkpoint that it cannot take up names the file and the agent."""
    try:
        yield
    except Exception as error:  # of an agent of the user's own it may be any
        why = str(error) if isinstance(error, ApexrlError) else f"{type(error).__name__}: {error}"
        raise SpecError(
            f"{path} does not fit agent {name}: {why}. Resume with the agent, network and environment that it was "
            f"trained with: look for what was changed, in {RunFolder(context.folder).config_path} or besides"
        ) from error


def write(context: Context, agent: Agent, keep: int) -> None:
    """Write a checkpoint of ``agent``, and keep that many."""
    write_state(context, agent.state_dict(), keep)


def write_state(context: Context, state: dict[str, Array], keep: int) -> None:
    """Write a checkpoint of what an agent's ``state_dict`` gave, and keep that many. A state that is NaN or infinite is
    not written, and pushes no good one out: whoever meets it when learning ends the run.

    Its number is that of updates ever made, as the version's: it grows over restarts, and so do file names.
    """
    if bad := [name for name, array in state.items() if array.dtype.kind == "f" and not np.isfinite(array).all()]:
        text = f"{bad[0]} is NaN or infinite: no checkpoint is written. {last_good(context)}"
        context.send("log", text=text, level="warning")
        return
    counts = {name: context.total(name) for name in ("updates", "env_steps", "episodes")}
    path = checkpoint.save(RunFolder(context.folder).checkpoints, state, counts, keep=keep)
    context.send("checkpoint", path=str(path), updates=counts["updates"])


def last_good(context: Context) -> str:
    """Where a run that went wrong can be taken up, for a message."""
    kept = checkpoint.latest(RunFolder(context.folder).checkpoints)
    return f"The last good checkpoint is {kept}" if kept else "No checkpoint was written yet"
