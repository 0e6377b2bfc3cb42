"""A run's checkpoints as the role sees them that writes them: taken up when it begins, written now and then."""

from __future__ import annotations

import numpy as np

from apexrl import checkpoint
from apexrl.protocols import Agent, Context, WeightsReader
from apexrl.run_folder import RunFolder
from apexrl.spec import Array


def restore(context: Context, agent: Agent, weights: WeightsReader) -> None:
    """Let ``agent`` go on where the run was: its newest checkpoint; else the published weights; else the best ones,
    where updates were made; else it stays as it is.

    Raises:
        SnapshotError: there are checkpoints, but none can be read, or they are of another agent.
        SpecError: they are of another network.
    """
    folder = RunFolder(context.folder).checkpoints
    found = checkpoint.load_latest(folder)
    if found is not None:
        agent.load_state_dict(found.arrays)
        for reason in found.skipped:
            context.send("log", text=f"passed over a checkpoint: {reason}", level="warning")
        context.send("log", text=f"{context.name} restored {found.path.name}")
    elif (newest := weights.latest()) is not None:
        version, arrays = newest
        agent.load(arrays)
        context.send("log", text=f"{context.name} took up the published weights, version {version}")
    elif context.total("updates") and (best := checkpoint.best(folder)) is not None:
        agent.load(checkpoint.load(best).arrays)
        text = (
            f"there is no checkpoint but {best.name}: {context.name} goes on from it, with a new optimizer and target"
        )
        context.send("log", text=text, level="warning")


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
