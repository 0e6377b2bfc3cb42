"""The evaluator role: plays episodes with the newest weights, in environments of its own."""

from __future__ import annotations

import time
from typing import Literal

import numpy as np

from apexrl.config import Config
from apexrl.protocols import Agent, Context, WeightsReader
from apexrl.roles import checkpointing
from apexrl.roles.action_check import ActionCheck
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
_PATIENCE_STEPS = 100_000  # and of each environment, where no time limit is known; an Atari game has 27,000
_UNTRAINED_SECONDS = 3.0  # of an evaluation of weights that no update has changed, once there are others
_FEWEST = 5  # episodes of an evaluation on the way, unless they take too long for it
_PART = 0.1  # of the run so far, that an evaluation on the way may take
_FINAL_TRIALS = 4  # of the newest weights, of the best, of newer ones, and of the last
_LOOK_SECONDS = 0.05  # between looks for new weights: each look halts a learner that has threads on all cores


class Evaluator:
    """Evaluates the newest weights periodically, keeps the best, and at the end measures the best and the last again.

    With ``eval_period_steps`` those after so many environment steps each. They wait for their turn, if need be until
    training has ended.

    Where episodes are slow, evaluations on the way play fewer, to take no longer than a tenth of the run so far, or
    than a minute. Else a run would have few of them, or none, as all would reach ``eval_timeout``.

    Weights that no update has changed are the best only until others were measured, whose returns may be lower. Their
    evaluation is given up where it takes long and there are others.

    These final results are unbiased: both are of the same fresh seeds, which chose neither the weights nor the moment
    to stop. With ``eval_seed`` all earlier evaluations have the same seeds, and the final ones have others. Where they
    would take longer than the run did, and than a minute, fewer episodes are played, and by so few the best weights are
    not chosen anew.
    """

    traits = RoleTraits("evaluator", Work("evaluations", "evals/s", "evaluating"), writes_to_folder=True)

    def __init__(self, context: Context, *, config: Config, spec: EnvSpec, weights: WeightsReader) -> None:
        from apexrl.agents import agent_class
        from apexrl.envs import FrameStack
        from apexrl.envs.make import has_limit, known_limit

        settings = config.evaluator
        envs = min(settings.eval_envs, settings.eval_episodes)
        self._context = context
        self._settings = settings
        self._serial = config.serial
        self._gamma = config.agent.gamma
        self._check = ActionCheck(config.agent.agent, spec.action)
        self._weights = weights
        self._agent: Agent = agent_class(config.agent.agent)(spec, config.agent, "cpu", context.seed)
        self._seeds = np.random.SeedSequence(context.seed)  # spawns fresh ones, unless one is set
        players = opponents(context, config, config.env.eval_opponents)
        self._env = role_envs(context, config, envs, context.seed, cores=1, changing=False, players=players)
        self._limited = self._env.time_limit is not None or has_limit(config.env)
        self._limit = known_limit(config.env)
        self._acting = config.actor.actors * config.actor.envs_per_actor  # environments of the actors
        self._frames = FrameStack(spec.stack, self._env.num_envs, spec.observation)
        self._folder = RunFolder(context.folder).checkpoints
        goal = config.stop.stop_at_return
        self._goal = float("inf") if goal is None else goal
        self._stops = goal is not None or bool(config.stop.stop_without_improvement)  # a return may end the run
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
        self._episodes = settings.eval_episodes
        self._episode_seconds = 0.0  # that an episode of the last trial took; 0: nothing is known
        self._next_start = context.clock()
        self._began = time.monotonic()
        self._closed: float | None = None  # when training ended, of the monotonic clock
        self._warned = self._told = False  # that no episode ends; that evaluations are shorter

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
            self._trial = self._begin(self._seed(), self._on_the_way())
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
            self._episode_seconds = self._expected_seconds(self._trial)
            self._trial = None
        elif self._outdated(self._trial):
            self._episode_seconds = self._expected_seconds(self._trial)
            self._trial = None
        elif not self._warned and self._trial.late(_PATIENCE_SECONDS) and self._endless(self._trial):
            self._warned = True
            text = (
                f"no episode has ended yet, in {self._context.total('env_steps'):,} steps: evaluations need ends. If "
                "the environment has no time limit, give it one with --max-episode-steps"
            )
            self._context.send("log", text=text, level="warning")
        return True

    def close(self) -> None:
        """The newest weights once more; then the final evaluations, of the best and of the last weights."""
        self._closed = time.monotonic()
        endless = self._evaluate_waiting()
        self._shorten()
        before = self._newest
        if not endless and self._judges_more() and self._pull() and not self._newest.equals(before):
            trial = self._begin(self._seed())  # a run may end long after its last evaluation began
            if self._finish(trial):
                self._judge(trial)
                self._shorten()
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
        if waiting := self._by_steps.waiting + (self._trial is not None):
            text = f"evaluations of --eval-period-steps that are still to be made: {waiting}. Ctrl-C leaves them out"
            self._context.send("log", text=text, level="info")
        endless = False
        while not (endless or self._context.hurried() or self._best_return >= self._goal):
            if self._trial is None and not self._load_next():
                return False
            trial, self._trial = self._trial or self._begin(self._seed(), self._on_the_way()), None
            if self._finish(trial):
                self._judge(trial)
            else:
                self._episode_seconds = self._expected_seconds(trial)
            endless = self._endless(trial)
        self._context.count(missed_evaluations=self._by_steps.waiting)
        return endless

    def _judges_more(self) -> bool:
        """Whether newer weights are to be judged at the end: not by fewer episodes than the best were."""
        return self._best_return < self._goal and not self._context.hurried() and self._episodes >= self._judged_by

    def _shorten(self) -> None:
        """Where episodes are slow, play fewer: the run's time, or a minute, is for the best and the last weights, and
        for a choice of the best where none was made. A serial run does not depend on seconds."""
        if self._trial is not None:
            self._episode_seconds = max(self._episode_seconds, self._expected_seconds(self._trial))
            self._trial = None
        lasted = self._lasted()
        if self._serial or self._episode_seconds * self._episodes * _FINAL_TRIALS <= lasted:
            return
        episodes = self._possible(lasted / (2 if self._judged_by else 3), 1)
        if episodes >= self._episodes:
            return
        self._episodes = episodes
        text = (
            f"an episode takes about {self._episode_seconds:.2g} s: final evaluations play {self._episodes} of "
            f"{self._settings.eval_episodes}, to take no longer than the run, or than a minute. apexrl eval plays more"
        )
        self._context.send("log", text=text, level="info")

    def _on_the_way(self) -> int:
        """Episodes of an evaluation while the run goes on."""
        if self._serial or not self._episode_seconds:
            return self._episodes
        episodes = self._possible(self._settings.eval_timeout * 0.8, 1)  # what it takes is an estimate
        if self._by_steps is None and not self._stops:
            episodes = min(episodes, self._possible(max(_PATIENCE_SECONDS, _PART * self._lasted()), _FEWEST))
        if episodes < self._episodes and not self._told:
            self._told = True
            text = (
                f"an episode takes about {self._episode_seconds:.3g} s: evaluations play {episodes} of "
                f"{self._episodes} (--eval-episodes says why)"
            )
            self._context.send("log", text=text, level="info")
        return episodes

    def _lasted(self) -> float:
        """Seconds of the run so far, or until training ended; at least a minute."""
        now = time.monotonic() if self._closed is None else self._closed
        return max(_PATIENCE_SECONDS, now - self._began)

    def _possible(self, seconds: float, least: int) -> int:
        """Episodes that can be played in this time."""
        envs = 1 if self._env.rests else self._env.num_envs  # which are all stepped, anyway
        rounds = max(int(seconds / self._episode_seconds / envs), -(-least // envs))
        return min(self._episodes, rounds * envs)

    def _expected_seconds(self, trial: Trial) -> float:
        """What an episode of a trial takes that has not ended. Where none has ended in training, one is as long as the
        environment's limit, or as training was."""
        if not trial.steps:
            return 0.0
        ended = self._context.total("episodes")
        played = ended or self._acting  # neither, where other hosts act, or nobody does
        length = self._context.total("env_steps") / played if played else 0.0
        if self._limit:
            length = min(length, self._limit) if ended else self._limit
        if not trial.returns:
            length = max(length, trial.steps)
        return trial.seconds / (trial.steps * self._env.num_envs) * length

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
        if not self._judges_more() or not self._pull() or not self._newest.updates:
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
        lasted = self._lasted()
        while running and not self._context.hurried() and not trial.late(limit):
            self._context.should_stop()  # also the heartbeat
            with self._context.env_call():
                running = trial.step()
            if running and ((trial.late(lasted) and self._endless(trial)) or self._circles(trial)):
                limit = 0.0
        if running and not self._context.hurried():
            self._context.send("log", text=trial.overdue(), level="warning")
        return not running

    def _endless(self, trial: Trial) -> bool:
        """Whether no episode has ended, neither in the run nor in this trial."""
        return self._best is None and not trial.returns and not self._context.total("episodes")

    def _outdated(self, trial: Trial) -> bool:
        """Whether a trial of weights that no update has changed takes long, and there are others. Policies that have
        learned nothing may play the longest episodes."""
        if self._serial or self._by_steps or self._newest.updates or not self._context.total("updates"):
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
                episodes or self._episodes,
                seed,
                self._check,
                self._gamma,
                settings,
            )

    def _judge(self, trial: Trial) -> None:
        self._context.count(evaluations=1)
        self._episode_seconds = trial.seconds / max(1, len(trial.returns))
        first = self._newest.updates > 0 and self._best is not None and not self._best.updates
        if first or trial.mean >= self._best_return:  # of equals the newest, which has seen most
            self._keep(self._newest, trial.mean)
            self._judged_by = len(trial.returns) if self._newest.updates else 0
        self._send(trial, self._newest)

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
            found = checkpoint.load(path)
            version, env_steps, updates = (int(found.metadata[name]) for name in ("version", "env_steps", "updates"))
            self._best = Candidate(version, found.arrays, env_steps, updates)
            self._best_return = float(found.metadata["eval_return"])
            self._judged_by = self._settings.eval_episodes if updates else 0

    def _send(self, trial: Trial, candidate: Candidate, weights: Literal["", "best", "last"] = "") -> None:
        """Tell what was measured. ``weights``: whose final evaluation it is; empty: it is none."""
        waited = {}
        if self._by_steps is not None and not weights:
            until = time.monotonic() if self._closed is None else self._closed
            waited = {"seconds_ago": max(0.0, until - candidate.pulled)}
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
