"""The learner: samples, takes a gradient step, writes priorities back, publishes weights."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, cast

import numpy as np

from apexrl import checkpoint
from apexrl.config import Config
from apexrl.errors import ConfigError, NonFiniteError
from apexrl.protocols import Agent, Context, Item, WeightsReader, WeightsWriter
from apexrl.roles.actor import FIRST_VERSION, VERSION
from apexrl.roles.batches import DirectBatches, PrefetchedBatches
from apexrl.roles.lag import LagMeter
from apexrl.run_folder import RunFolder
from apexrl.spec import Array, EnvSpec

if TYPE_CHECKING:
    from apexrl.replay import BatchServer, Replay

    class Weights(WeightsWriter, WeightsReader): ...


_REPORT_SECONDS = 0.5
_PREFETCH_ON_CUDA = 4


class Learner:
    """Ape-X's learner (Horgan et al. 2018, Algorithm 2). It owns the replay from its first sample on, or takes batches
    that a replay role samples for it.

    A learner that takes a dead one's place restores the newest checkpoint and goes on. Weights versions are one more
    than the learner updates ever made in the run, so they never go back: a version counts an attempt, even where a
    restored learner repeats the work. Version 1 means that nothing was learned, also after a restart or a resume.
    """

    def __init__(
        self, context: Context, *, config: Config, spec: EnvSpec, replay: Replay | BatchServer, weights: Weights
    ) -> None:
        import torch

        from apexrl.agents import agent_class
        from apexrl.replay import BatchServer

        settings = config.learner
        torch.set_num_threads(max(1, settings.learner_threads))
        device = torch_device(settings.device)
        self._context = context
        self._config = config
        self._replay = None if isinstance(replay, BatchServer) else replay
        self._weights = weights
        self._agent: Agent = agent_class(config.agent.agent)(spec, config.agent, device, context.seed)
        self._sequences = getattr(self._agent, "item", Item()).kind == "sequence"
        self._folder = RunFolder(context.folder)
        self._restore()

        updates = context.total("updates")
        learned = updates > 0 or weights.version > FIRST_VERSION
        # A learner restarted before its first update has the weights that the board holds: nothing to publish.
        self._version = max(weights.version, updates) + 1 if learned else FIRST_VERSION
        self._publish()
        source = replay.learner(context.index) if isinstance(replay, BatchServer) else replay
        direct = DirectBatches(source, self._agent, settings.batch_size, config.replay.beta, context.patience)
        if device.startswith("cuda") and not isinstance(replay, BatchServer):
            replay.allocator = pinned  # the gather then writes where the device copies from
        ahead = settings.prefetch if settings.prefetch >= 0 else _PREFETCH_ON_CUDA * device.startswith("cuda")
        threaded = ahead > 0 and context.patience > 0  # taking turns in one process leaves nobody to fetch ahead
        self._batches = PrefetchedBatches(direct, ahead, context.patience) if threaded else direct

        now = context.clock()
        self._lag = LagMeter()
        self._metrics: dict[str, float] = {}
        self._update_due = now
        self._next_report = now + _REPORT_SECONDS
        self._next_checkpoint = now + settings.checkpoint_seconds

    def step(self) -> bool:
        """One update. False: the replay has no batch yet, or ``updates_per_second`` says wait."""
        if not self._due():
            return False
        ready = self._batches.next()
        if ready is None:
            self._report()
            return False
        batch, prepared = ready
        try:
            learned = self._agent.update(prepared)
        except NonFiniteError as error:
            raise NonFiniteError(self._obituary(error, batch.keys.tolist())) from error
        self._context.count(updates=1)
        versions = batch.data[VERSION].astype(np.int64, copy=False)
        if self._sequences:  # whose padding no version chose
            versions = versions[batch.data["mask"]]
        self._lag.add(self._version - versions)
        self._version += 1
        if learned.priorities is not None:
            self._batches.write_back(batch.keys, learned.priorities)
        if learned.metrics:
            self._metrics = learned.metrics
        if self._version % self._config.learner.publish_period_updates == 0:
            self._publish()
        self._report()
        return True

    def close(self) -> None:
        """The last weights, the final checkpoint, and the replay when it is to be kept."""
        self._batches.close()
        self._publish()
        self._report(now=float("inf"))
        self._checkpoint()
        if self._config.learner.save_replay and self._replay is not None:
            self._replay.save(self._folder.replay_path)

    def _due(self) -> bool:
        """Holds the pace of ``updates_per_second``, if one is set."""
        pace = self._config.learner.updates_per_second
        if not pace:
            return True
        now = self._context.clock()
        wait = self._update_due - now
        if wait > 0:
            time.sleep(min(wait, self._context.patience))
            if wait > self._context.patience:
                return False
        self._update_due = max(self._update_due, now - 1.0) + 1.0 / pace
        return True

    def _publish(self) -> None:
        if self._version > self._weights.version:
            self._weights.publish(self._agent.weights(), self._version)

    def _restore(self) -> None:
        found = checkpoint.load_latest(self._folder.checkpoints)
        if found is not None:
            self._agent.load_state_dict(found.arrays)
            for reason in found.skipped:
                self._context.send("log", text=f"passed over a checkpoint: {reason}", level="warning")
            self._context.send("log", text=f"{self._context.name} restored {found.path.name}")
        elif (newest := self._weights.latest()) is not None:
            version, arrays = newest
            self._agent.load(arrays)
            self._context.send("log", text=f"{self._context.name} took up the published weights, version {version}")
        elif self._context.total("updates") and (best := checkpoint.best(self._folder.checkpoints)) is not None:
            self._agent.load(checkpoint.load(best).arrays)
            text = (
                f"there is no checkpoint of the learner: it goes on from {best.name}, with a new optimizer and target"
            )
            self._context.send("log", text=text, level="warning")

    def _checkpoint(self) -> None:
        # The number is that of updates ever made, as the version's: it grows over restarts, and so do file names.
        counts = {name: self._context.total(name) for name in ("updates", "env_steps", "episodes")}
        path = checkpoint.save(
            self._folder.checkpoints, self._agent.state_dict(), counts, keep=self._config.learner.checkpoints_kept
        )
        self._context.send("checkpoint", path=str(path), updates=counts["updates"])

    def _report(self, now: float | None = None) -> None:
        now = self._context.clock() if now is None else now
        if now >= self._next_report:
            self._next_report = now + _REPORT_SECONDS
            lately, ever = self._lag.read()
            updates = self._context.total("updates")
            self._context.send("metrics", values=self._metrics, updates=updates, lag=lately, run_lag=ever)
        if self._next_checkpoint <= now < float("inf"):
            self._checkpoint()
            self._next_checkpoint = self._context.clock() + self._config.learner.checkpoint_seconds

    def _obituary(self, error: NonFiniteError, keys: list[int]) -> str:
        kept = checkpoint.latest(self._folder.checkpoints)
        last = f"The last good checkpoint is {kept}" if kept else "No checkpoint was written yet"
        shown = ", ".join(f"{key:#x}" for key in keys[:8]) + (", …" if len(keys) > 8 else "")
        update = f"update {self._version}"
        return (
            f"{update} (batch of {len(keys)} items, keys {shown}): {str(error).removeprefix(f'{update}: ')}. {last}. "
            "Lower --learning-rate or --gradient-clip, or look for NaN, infinite or huge rewards and observations"
        )


def pinned(shape: tuple[int, ...], dtype: str) -> Array:
    """An array in page-locked memory, from which a copy to a CUDA device runs by itself."""
    import torch

    return cast("Array", torch.empty(shape, dtype=getattr(torch, dtype), pin_memory=True).numpy())


def torch_device(name: str) -> str:
    """``auto`` resolved; anything else checked.

    Raises:
        ConfigError: PyTorch does not know the device, or has no CUDA.
    """
    import torch

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"--device {name!r} is no device: use auto, cpu, cuda or cuda:N") from error
    count = torch.cuda.device_count()
    if device.type == "cuda" and (device.index or 0) >= count:
        found = f"{count} CUDA devices; use cuda:0 … cuda:{count - 1}" if count else "no CUDA device; use --device cpu"
        raise ConfigError(f"--device {name!r}: this PyTorch finds {found}")
    return name
