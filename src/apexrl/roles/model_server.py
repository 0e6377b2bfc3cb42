"""The model server role: GA3C's predictor and trainer threads around one model, in one process."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from apexrl.config import Config
from apexrl.protocols import Context
from apexrl.roles import checkpointing
from apexrl.roles.actor import FIRST_VERSION
from apexrl.roles.inference_batches import InferenceBatches
from apexrl.roles.learner import pinned
from apexrl.roles.role_traits import RoleTraits
from apexrl.roles.shared_model import SharedModel
from apexrl.roles.thread_pool import ThreadPool
from apexrl.roles.trainer import Trainer, TrainingBatches
from apexrl.run.status import Work
from apexrl.spec import EnvSpec

if TYPE_CHECKING:
    from apexrl.links.local.inference import InferenceLink
    from apexrl.links.local.tunable_count import TunableCount
    from apexrl.replay import Replay
    from apexrl.roles.shared_model import Weights

_LOOK_SECONDS = 0.05  # between looks at thread counts, and at least between publications
_REPORT_SECONDS = 0.5


class ModelServer:
    """GA3C's server (Babaeizadeh et al. 2017, section 4): predictors answer environments, trainers learn from the
    results, both with one model (``SharedModel``) and in batches of whoever, and whatever, waits.

    Predictors write steps into the queue from which trainers take unrolls. When it is full, environments wait for
    their actions. How many threads there are of either kind may change at any time.

    The main thread acts and learns nothing: it sees to the threads, publishes for the evaluator, and saves. An error in
    a thread is an error of the role. Roles that take turns in one process have no threads: every step is a turn of
    each predictor, then of each trainer.

    With the process go unrolls under way, recurrent states and the newest updates: its successor begins with the newest
    checkpoint, and streams begin anew. What waits in the queue survives.
    """

    traits = RoleTraits("model_server", Work("updates", "updates/s", "learning"), writes_checkpoints=True)

    def __init__(
        self,
        context: Context,
        *,
        config: Config,
        spec: EnvSpec,
        inference: InferenceLink,
        replay: Replay,
        weights: Weights,
        predictors: TunableCount,
        trainers: TunableCount,
    ) -> None:
        import torch

        settings = config.learner
        torch.set_num_threads(max(1, settings.learner_threads))
        self._context = context
        self._config = config
        self._replay = replay
        self._weights = weights
        self._model = model = SharedModel(context, config, spec, weights)
        if model.device.startswith("cuda"):
            replay.allocator = pinned  # the gather then writes where the device copies from
        self._asked = asked = InferenceBatches(
            context, config=config, spec=spec, inference=inference, replay=replay, records=model.records
        )
        learned = TrainingBatches(context, config, replay)
        random_start, limit = config.actor.random_start, settings.max_policy_lag
        self._trouble = threading.Event()
        watched = self._trouble, config.stall_timeout
        self._crews = (
            ThreadPool("predictor", predictors, lambda number: Predictor(model, number, asked, random_start), *watched),
            ThreadPool("trainer", trainers, lambda number: Trainer(model, number, learned, limit), *watched),
        )
        now = context.clock()
        self._seen = (0, 0)  # updates and batches at the last look
        self._next_publication = self._next_report = now
        self._saving = checkpointing.Saving(context, settings.checkpoint_seconds, kept=settings.checkpoints_kept)

    def step(self) -> bool:
        """Let the threads work for a moment. False: they have answered nobody and learned nothing."""
        if self._context.patience:
            for crew in self._crews:
                crew.staff()
            self._trouble.wait(min(_LOOK_SECONDS, self._context.patience))
            seen = self._context.total("updates"), self._context.total("batches")
            moved, self._seen = seen != self._seen, seen
        else:
            moved = sum(member.step() for crew in self._crews for member in crew.members()) > 0
        self._keep()
        return moved

    def close(self) -> None:
        """End the threads, publish the last steps and weights, write the final checkpoint, and the queue when it is to
        be kept."""
        late = [name for crew in self._crews for name in crew.close()]
        if late:
            self._context.send("log", text=f"{self._context.name}: {', '.join(late)} did not end", level="warning")
        self._asked.close()
        self._model.publish()
        self._model.report()
        self._saving.last(self._model.save)
        if self._config.learner.save_replay:
            checkpointing.save_replay(self._context, self._replay)
        for crew in self._crews:
            crew.check()

    def _keep(self) -> None:
        """Publish, report and save when it is time."""
        now, settings = self._context.clock(), self._config.learner
        news = self._model.version - self._weights.version
        if news >= settings.publish_period_updates and now >= self._next_publication:
            self._model.publish()
            self._next_publication = now + _LOOK_SECONDS
        self._asked.report()
        if now >= self._next_report:
            self._model.report()
            self._next_report = now + _REPORT_SECONDS
        if self._saving.due:
            self._saving.now(self._model.save)


class Predictor:
    """One thread's part: chooses for whoever waits, with the model as it is at this moment.

    A step's version is the model's when its action was about to be chosen, so no newer than what chose it.
    """

    def __init__(self, model: SharedModel, number: int, batches: InferenceBatches, random_start: bool) -> None:
        self._model = model
        self._agent = model.instance(number, learns=False)
        self._batches = batches
        self._random_start = random_start

    def step(self) -> bool:
        """Answer a batch. False: nobody waits, or the queue takes no more."""
        from apexrl.agents.trained_agent import refresh

        batch = self._batches.next(random=self._random_start and self._model.version == FIRST_VERSION)
        if batch is None:
            return False
        version = self._model.version
        refresh(self._agent)
        self._batches.answer(batch, self._agent.act(batch.seen, batch.state, batch.exploration), version)
        return True
