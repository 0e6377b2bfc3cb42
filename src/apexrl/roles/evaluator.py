"""The evaluator role: plays episodes with the newest weights, in environments of its own."""

from __future__ import annotations

import time
from typing import Literal

import numpy as np

from apexrl.config import Config
from apexrl.errors import SnapshotError
from apexrl.protocols import Agent, Context, WeightsReader
from apexrl.roles import checkpointing
from apexrl.roles.action_check import ActionCheck
from apexrl.roles.evaluation_time import EvaluationTime
from apexrl.roles.pool_players import opponents
from apexrl.roles.role_envs import role_envs
from apexrl.roles.role_traits import RoleTraits
from apexrl.roles.trial import Trial
from apexrl.roles.weights_by_steps import Candidate, WeightsBySteps, newest
from apexrl.run import checkpoint
from apexrl.run.folder import RunFolder
from apexrl.run.status import Work
from apexrl.spec import EnvSpec

_PATIENCE_SECONDS = 60.0  # of an evaluation without an end, before it is said or given up
_FINAL_PATIENCE_SECONDS = 5.0  # of a final one, before it is said: nothing else is seen to go on
_PATIENCE_STEPS = 100_000  # and of each environment, where no time limit is known; an Atari game has 27,000
_UNTRAINED_SECONDS = 3.0  # of an evaluation of weights that no update has changed, once there are others
_LOOK_SECONDS = 0.05  # between looks for new weights: each look halts a learner that has threads on all cores


class Evaluator:
    """Evaluates the newest weights periodically, keeps the best, and at the end measures the best and the last again.

    With ``eval_period_steps`` those after so many environment steps each. They wait for their turn, if need be until
    training has ended.

    Where episodes are slow, evaluations play fewer (``EvaluationTime``), and by so few the best weights are not chosen
    anew at the end.

    Weights that no update has changed are the best only until others were measured, whose returns may be lower. Their
    evaluation is given up where it takes long and there are others.

    These final results are unbiased: both are of the same fresh seeds, which chose neither the weights nor the moment
    to stop. With ``eval_seed`` all earlier evaluations have the same seeds, and the final ones have others.
    """

    traits = RoleTraits("evaluator", Work("evaluations", "evals/s", "evaluating"), writes_to_folder=True)

    def __init__(self, context: Context, *, config: Config, spec: EnvSpec, weights: WeightsReader) -> None:
        from apexrl.agents import agent_class
        from apexrl.envs import FrameStack
        from apexrl.envs.make import has_limit

        settings = config.evaluator
        envs = min(settings.eval_envs, settings.eval_episodes)
        self._context = context
        self._settings = settings
        self._serial = config.serial
        self._gamma = config.agent.gamma
        self._begins_trained = bool(config.learner.initial_weights)
        self._check = ActionCheck(config.agent.agent, spec.action)
        self._weights = weights
        self._agent: Agent = agent_class(config.agent.agent)(spec, config.agent, "cpu", context.seed)
        self._seeds = np.random.SeedSequence(context.seed)  # spawns fresh ones, unless one is set
        players = opponents(context, config, config.env.eval_opponents)
        self._env = role_envs(context, config, envs, context.seed, cores=1, changing=False, players=players)
        self._limited = self._env.time_limit is not None or has_limit(config.env)
        self._time = EvaluationTime(context, config, self._env)
        self._frames = FrameStack(spec.stack, self._env.num_envs, spec.observation)
        self._folder = RunFolder(context.folder).checkpoints
        goal = config.stop.stop_at_return
        self._goal = float("inf") if goal is None else goal
        self._best: Candidate | None = None
        self._best_return = float("-inf")
        self._judged_by = 0  # episodes that chose the best weights, once these have learned
        self._unsaved = False  # whether the best weights have yet to be written
        self._saving = checkpointing.Saving(context, 0.0, f"the best weights to {self._folder / checkpoint.BEST}")
        self._recall()

        self._newest = Candidate(0, {}, 0, 0)
        steps = settings.eval_period_steps
        self._by_steps = WeightsBySteps(context, weights, steps) if steps else None
        self._trial: Trial | None = None
        self._next_start = context.clock()
        self._warned = False  # that no episode ends

    def step(self) -> bool:
        """One step of the evaluation in progress, or the start of one. False: nothing new to measure yet."""
        if self._unsaved and self._saving.due:
            self._save()
        if self._by_steps:
            self._by_steps.look()
        if self._trial is None:
            if self._context.clock() < self._next_start or not self._load_next():
                time.sleep(min(self._context.patience, _LOOK_SECONDS))
                return False
            if self._by_steps is None:
                self._next_start = self._context.clock() + self._settings.eval_period_seconds
            self._trial = self._begin(self._seed(), self._time.on_the_way())
        with self._context.env_call():
            running = self._trial.step()
        if not running:
            self._judge(self._trial)
            # Where cores are short, others have them meanwhile. A serial run does not depend on seconds.
            rest = 0.0 if self._serial else self._trial.queued
            self._next_start = max(self._next_start, self._context.clock() + rest)
            self._trial = None
        elif self._trial.late(self._settings.eval_timeout) or self._circles(self._trial):
            self._context.send("log", text=self._trial.overdue(), level="warning")
            self._time.left(self._trial)
            self._trial = None
        elif self._outdated(self._trial):
            self._time.left(self._trial)
            self._trial = None
        elif self._trial.late(_PATIENCE_SECONDS):
            self._warn_of_endless(self._trial)
        return True

    def close(self) -> None:
        """The newest weights once more; then the final evaluations, of the best and of the last weights."""
        self._time.end()
        self._warned = False  # how long is waited for an end is said once more
        endless = self._evaluate_waiting()
        self._time.shorten(self._judged_by > 0, self._trial)
        self._trial = None
        before = self._newest
        if not endless and self._judges_more() and self._pull() and not self._newest.equals(before):
            trial = self._begin(self._seed())  # a run may end long after its last evaluation began
            if self._finish(trial):
                self._judge(trial)
                self._time.shorten(self._judged_by > 0)
            endless = self._endless(trial)  # nor would the next ones end
        if not endless and not self._context.hurried():
            self._measure_again()
        if self._unsaved:
            self._saving.last(self._write_best)
        with self._context.env_call():
            self._env.close()

    def _evaluate_waiting(self) -> bool:
        """The weights that wait, and those whose evaluation is in progress, until the goal is reached or nobody waits
        for the end. Whether no episode ends."""
        if self._by_steps is None:
            return False
        left, endless = self._by_steps.waiting + (self._trial is not None), False
        if left and not (self._context.hurried() or self._best_return >= self._goal):
            text = f"evaluations of --eval-period-steps that are still to be made: {left}. Ctrl-C leaves them out"
            self._context.send("log", text=text, level="info")
        while not (endless or self._context.hurried() or self._best_return >= self._goal):
            if self._trial is None and not self._load_next():
                return False
            trial, self._trial = self._trial or self._begin(self._seed(), self._time.on_the_way()), None
            if self._finish(trial):
                self._judge(trial)
            else:
                self._time.left(trial)
            endless = self._endless(trial)
        self._context.count(missed_evaluations=self._by_steps.waiting)
        return endless

    def _judges_more(self) -> bool:
        """Whether newer weights are to be judged at the end: not by fewer episodes than the best were."""
        return self._best_return < self._goal and not self._context.hurried() and self._time.episodes >= self._judged_by

    def _measure_again(self) -> None:
        """The best and the last weights on the same seeds, never used before; once, where they are the same."""
        if self._best is None:
            self._pull()
        best, seed = self._best or self._newest, self._seed(final=True)
        if not best.weights:
            return
        measured = self._measure(best, seed)
        if self._judge_newer():
            best = self._newest
            measured = self._measure(best, seed)
        if measured is not None:
            self._send(measured, best, "best")
            if self._best is None:
                self._keep(best, measured.mean)
        if self._context.hurried():
            return
        self._pull()  # what the learner published when it ended
        last = self._newest
        if not last.weights:
            return
        if not last.equals(best):
            measured = self._measure(last, seed)
        if measured is not None:
            self._send(measured, last, "last")

    def _judge_newer(self) -> bool:
        """Judge weights that came after all evaluations: in a short run the last update may change much. Whether they
        are the best."""
        if not self._judges_more() or not self._pull() or not self._trained(self._newest):
            return False
        trial = self._begin(self._seed())
        if self._finish(trial):
            self._judge(trial)
        return self._best is self._newest

    def _measure(self, candidate: Candidate, seed: int) -> Trial | None:
        """A trial of weights, as far as it came in its time; None: it was cut short by haste, or no episode ended."""
        self._agent.load(candidate.weights)
        trial = self._begin(seed)
        return trial if self._finish(trial) or (trial.returns and not self._context.hurried()) else None

    def _finish(self, trial: Trial) -> bool:
        """Play a trial to its end. False: it was cut short, by haste, by its time limit or because it ``_circles``.
        Where no episode has ended in it or in the run, its limit is a minute or as long as the run took."""
        running, limit = True, self._settings.eval_timeout
        lasted = self._time.lasted
        while running and not self._context.hurried() and not trial.late(limit):
            self._context.should_stop()  # also the heartbeat
            with self._context.env_call():
                running = trial.step()
            if running and trial.late(_FINAL_PATIENCE_SECONDS):
                self._warn_of_endless(trial, f". This evaluation is given up after {min(lasted, limit):.0f} s")
            if running and ((trial.late(lasted) and self._endless(trial)) or self._circles(trial)):
                limit = 0.0
        if running and not self._context.hurried():
            self._context.send("log", text=trial.overdue(), level="warning")
        return not running

    def _warn_of_endless(self, trial: Trial, besides: str = "") -> None:
        """Once, if no episode has ended yet."""
        if self._warned or not self._endless(trial):
            return
        self._warned = True
        text = (
            f"no episode has ended yet, in {self._context.total('env_steps'):,} steps: evaluations need ends. If the "
            f"environment has no time limit, give it one with --max-episode-steps{besides}"
        )
        self._context.send("log", text=text, level="warning")

    def _endless(self, trial: Trial) -> bool:
        """Whether no episode has ended, neither in the run nor in this trial."""
        return self._best is None and not trial.returns and not self._context.total("episodes")

    def _outdated(self, trial: Trial) -> bool:
        """Whether a trial of weights that no update has changed takes long, and there are others. Policies that have
        learned nothing may play the longest episodes."""
        if self._serial or self._by_steps or self._trained(self._newest) or not self._context.total("updates"):
            return False
        return trial.late(_UNTRAINED_SECONDS) and self._weights.latest(newer_than=self._newest.version) is not None

    def _circles(self, trial: Trial) -> bool:
        """Whether a policy seems to go on for ever: no time limit is known, and no episode of its trial has ended in
        ten times the steps of those in training, nor in a minute, on which a serial run does not depend."""
        episodes = self._context.total("episodes")
        if self._limited or trial.returns or not episodes or not (self._serial or trial.late(_PATIENCE_SECONDS)):
            return False
        return trial.steps >= max(_PATIENCE_STEPS, 10.0 * self._context.total("env_steps") / episodes)

    def _load_next(self) -> bool:
        """Load the weights whose turn it is. False: there are none yet."""
        if self._by_steps is None:
            return self._pull()
        return self._load(self._by_steps.take())

    def _pull(self) -> bool:
        """Load weights that were not measured yet, if there are any."""
        return self._load(newest(self._context, self._weights, self._newest.version))

    def _load(self, candidate: Candidate | None) -> bool:
        if candidate is None:
            return False
        self._newest = candidate
        self._agent.load(candidate.weights)
        return True

    def _seed(self, final: bool = False) -> int:
        """Of an evaluation's episodes. The final ones have another seed than those that choose weights."""
        fixed = self._settings.eval_seed
        source = np.random.SeedSequence(fixed, spawn_key=(final,)) if fixed else self._seeds.spawn(1)[0]
        return int(source.generate_state(1)[0])

    def _begin(self, seed: int, episodes: int = 0) -> Trial:
        settings = self._settings
        with self._context.env_call():
            return Trial(
                self._agent,
                self._env,
                self._frames,
                episodes or self._time.episodes,
                seed,
                self._check,
                self._gamma,
                settings,
            )

    def _judge(self, trial: Trial) -> None:
        self._context.count(evaluations=1)
        self._time.played(trial)
        first = self._trained(self._newest) and self._best is not None and not self._trained(self._best)
        if first or trial.mean >= self._best_return:  # of equals the newest, which has seen most
            self._keep(self._newest, trial.mean)
            self._judged_by = len(trial.returns) if self._trained(self._newest) else 0
        self._send(trial, self._newest)

    def _trained(self, candidate: Candidate) -> bool:
        """Whether weights are of this run's updates, or of those of another run, with which it began."""
        return candidate.updates > 0 or self._begins_trained

    def _keep(self, candidate: Candidate, mean: float) -> None:
        self._best, self._best_return = candidate, mean
        self._save()

    def _save(self) -> None:
        self._unsaved = not self._saving.now(self._write_best)

    def _write_best(self) -> None:
        assert self._best is not None
        about = {"eval_return": self._best_return, **self._best.origin()}
        checkpoint.save_best(checkpointing.folder_of(self._context), self._best.weights, about, self._context.fence)

    def _recall(self) -> None:
        """After a restart or a resume: the best weights are on disk."""
        path = checkpoint.best(self._folder)
        if path is not None:
            try:
                found = checkpoint.load(path)
            except SnapshotError as error:
                if isinstance(error.__cause__, OSError | MemoryError):  # another attempt may read it
                    raise
                text = f"the best weights are chosen anew, among those from now on: {error}"
                self._context.send("log", text=text, level="warning")
                return
            version, env_steps, updates = (int(found.metadata[name]) for name in ("version", "env_steps", "updates"))
            self._best = Candidate(version, found.arrays, env_steps, updates)
            self._best_return = float(found.metadata["eval_return"])
            self._judged_by = self._settings.eval_episodes if self._trained(self._best) else 0

    def _send(self, trial: Trial, candidate: Candidate, weights: Literal["", "best", "last"] = "") -> None:
        """Tell what was measured. ``weights``: whose final evaluation it is; empty: it is none."""
        waited = {}
        if self._by_steps is not None and not weights:
            waited = {"seconds_ago": max(0.0, self._time.now - candidate.pulled)}
        self._context.send(
            "evaluation",
            episodes=len(trial.returns),
            mean=trial.mean,
            std=float(np.std(trial.returns)),
            returns=trial.returns,
            final=bool(weights),
            **({"weights": weights} if weights else {}),
            **waited,
            **candidate.origin(),
            **trial.compared(),
            **({"metrics": trial.metrics} if trial.metrics else {}),
        )
