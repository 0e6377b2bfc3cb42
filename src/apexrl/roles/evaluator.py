"""The evaluator role: plays episodes with the newest weights, in environments of its own."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from apexrl.config import Config, EvaluatorConfig
from apexrl.protocols import Agent, Context, State, WeightsReader
from apexrl.roles import checkpointing
from apexrl.roles.action_check import ActionCheck
from apexrl.roles.env_arrays import zeroed
from apexrl.roles.executed_actions import ExecutedActions, changes_actions
from apexrl.roles.expected_returns import ExpectedReturns
from apexrl.roles.pool_players import opponents
from apexrl.roles.role_envs import role_envs
from apexrl.roles.role_traits import RoleTraits
from apexrl.run import checkpoint
from apexrl.run.episode_metrics import Spread, Spreads
from apexrl.run.folder import RunFolder
from apexrl.run.status import Work
from apexrl.shared.thread_seconds import thread_seconds
from apexrl.spec import Array, EnvSpec

if TYPE_CHECKING:
    from apexrl.envs import FrameStack, VectorEnv

_PATIENCE_SECONDS = 60.0  # of an evaluation without an end, before it is said or given up
_PATIENCE_STEPS = 100_000  # and of each environment, where no time limit is known; an Atari game has 27,000
_LOOK_SECONDS = 0.05  # between looks for new weights: each look halts a learner that has threads on all cores


class Candidate(NamedTuple):
    """Weights that may be measured, and how far the run was when they were pulled."""

    version: int
    weights: Mapping[str, Array]
    env_steps: int
    updates: int

    def origin(self) -> dict[str, int]:
        return {"version": self.version, "env_steps": self.env_steps, "updates": self.updates}

    def equals(self, other: Candidate) -> bool:
        """Whether the weights are the same. Versions do not tell: after a restart a learner counts some again."""
        return self.weights.keys() == other.weights.keys() and all(
            np.array_equal(array, other.weights[name]) for name, array in self.weights.items()
        )


class Evaluator:
    """Evaluates the newest weights periodically, keeps the best, and at the end measures the best and the last again.

    Weights that no update has changed are the best only until others were measured, whose returns may be lower.

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
        self._check = ActionCheck(config.agent.agent, spec.action)
        self._weights = weights
        self._agent: Agent = agent_class(config.agent.agent)(spec, config.agent, "cpu", context.seed)
        self._seeds = np.random.SeedSequence(context.seed)  # spawns fresh ones, unless one is set
        players = opponents(context, config, config.env.eval_opponents)
        self._env = role_envs(context, config, envs, context.seed, cores=1, changing=False, players=players)
        self._limited = self._env.time_limit is not None or has_limit(config.env)
        self._frames = FrameStack(spec.stack, self._env.num_envs, spec.observation)
        self._folder = RunFolder(context.folder).checkpoints
        goal = config.stop.stop_at_return
        self._goal = float("inf") if goal is None else goal
        self._best: Candidate | None = None
        self._best_return = float("-inf")
        self._unsaved = False  # whether the best weights have yet to be written
        self._saving = checkpointing.Saving(context, 0.0, f"the best weights to {self._folder / checkpoint.BEST}")
        self._recall()

        self._newest = Candidate(0, {}, 0, 0)
        self._trial: Trial | None = None
        self._next_start = context.clock()
        self._began = time.monotonic()
        self._warned = False  # that no episode ends

    def step(self) -> bool:
        """One step of the evaluation in progress, or the start of one. False: nothing new to measure yet."""
        if self._unsaved and self._saving.due:
            self._save()
        if self._trial is None:
            if self._context.clock() < self._next_start or not self._pull():
                time.sleep(min(self._context.patience, _LOOK_SECONDS))
                return False
            self._next_start = self._context.clock() + self._settings.eval_period_seconds
            self._trial = self._begin(self._seed())
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
        endless = False
        if self._best_return < self._goal and not self._context.hurried() and self._pull():
            trial = self._begin(self._seed())  # a run may end long after its last evaluation began
            if self._finish(trial):
                self._judge(trial)
            endless = self._endless(trial)  # nor would the next ones end
        if not endless and not self._context.hurried():
            self._measure_again()
        if self._unsaved:
            self._saving.last(self._write_best)
        with self._context.env_call():
            self._env.close()

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
        if self._context.hurried() or self._best_return >= self._goal or not self._pull() or not self._newest.updates:
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
        lasted = max(_PATIENCE_SECONDS, time.monotonic() - self._began)
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

    def _circles(self, trial: Trial) -> bool:
        """Whether a policy seems to go on for ever: no time limit is known, and no episode of its trial has ended in
        ten times the steps of those in training, nor in a minute, on which a serial run does not depend."""
        episodes = self._context.total("episodes")
        if self._limited or trial.returns or not episodes or not (self._serial or trial.late(_PATIENCE_SECONDS)):
            return False
        return trial.steps >= max(_PATIENCE_STEPS, 10.0 * self._context.total("env_steps") / episodes)

    def _pull(self) -> bool:
        """Take weights that were not measured yet, if there are any."""
        newest = self._weights.latest(newer_than=self._newest.version)
        if newest is None:
            return False
        version, arrays = newest
        self._newest = Candidate(version, arrays, self._context.total("env_steps"), self._context.total("updates"))
        self._agent.load(arrays)
        return True

    def _seed(self, final: bool = False) -> int:
        """Of an evaluation's episodes. The final ones have another seed than those that choose weights."""
        fixed = self._settings.eval_seed
        source = np.random.SeedSequence(fixed, spawn_key=(final,)) if fixed else self._seeds.spawn(1)[0]
        return int(source.generate_state(1)[0])

    def _begin(self, seed: int) -> Trial:
        settings = self._settings
        with self._context.env_call():
            return Trial(
                self._agent,
                self._env,
                self._frames,
                settings.eval_episodes,
                seed,
                self._check,
                self._gamma,
                settings,
            )

    def _judge(self, trial: Trial) -> None:
        self._context.count(evaluations=1)
        first = self._newest.updates > 0 and self._best is not None and not self._best.updates
        if first or trial.mean >= self._best_return:  # of equals the newest, which has seen most
            self._keep(self._newest, trial.mean)
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

    def _send(self, trial: Trial, candidate: Candidate, weights: Literal["", "best", "last"] = "") -> None:
        """Tell what was measured. ``weights``: whose final evaluation it is; empty: it is none."""
        self._context.send(
            "evaluation",
            episodes=len(trial.returns),
            mean=trial.mean,
            std=float(np.std(trial.returns)),
            returns=trial.returns,
            final=bool(weights),
            **({"weights": weights} if weights else {}),
            **candidate.origin(),
            **trial.compared(),
            **({"metrics": trial.metrics} if trial.metrics else {}),
        )


class Trial:
    """Exactly ``episodes`` episodes over B environments stepped together.

    Every environment owes a number of episodes that is fixed beforehand. Taking whichever end first would favour
    short episodes.

    Args:
        seed: of the environments, and of what ``settings`` have drawn.
        check: looks at the agent's actions; None: nobody does.
        gamma: discount of the returns that are compared with those that the agent expects; None: none are.
        settings: how the agent acts; the defaults are greedy.

    Raises:
        ConfigError: the settings mean nothing for the environment's actions.
    """

    def __init__(
        self,
        agent: Agent,
        env: VectorEnv,
        frames: FrameStack,
        episodes: int,
        seed: int,
        check: ActionCheck | None = None,
        gamma: float | None = None,
        settings: EvaluatorConfig | None = None,
    ) -> None:
        settings = settings or EvaluatorConfig()
        self._greedy = settings.eval_actions == "greedy"
        self._changes: ExecutedActions | None = None
        if changes_actions(settings):
            self._changes = ExecutedActions(settings, env.spec, env.num_envs, seed)
        self._agent = agent
        self._env = env
        self._check = check
        self._frames = frames
        each, more = divmod(episodes, env.num_envs)
        self._owed = [each + (index < more) for index in range(env.num_envs)]
        self._exploration = np.zeros(env.num_envs, np.float32)
        self._state: State = None
        self._seen = frames.push(env.reset(seed))
        self.returns: list[float] = []
        self.steps = 0  # of each environment
        self._told = Spreads()
        self._expected = None if gamma is None else ExpectedReturns(agent, gamma, self._seen)
        self._began = time.monotonic()
        self._queued = thread_seconds().queued

    @property
    def queued(self) -> float:
        """Seconds since the trial began in which this thread could have gone on, and had no core."""
        return thread_seconds().queued - self._queued

    def late(self, seconds: float) -> bool:
        return time.monotonic() - self._began > seconds

    def overdue(self) -> str:
        return (
            f"an evaluation was given up after {time.monotonic() - self._began:.3g} s and {self.steps:,} steps of each "
            f"environment (at most --eval-timeout, less where no episode ends): {len(self.returns)} episodes ended. "
            "Give the environment a time limit, or a shorter one, with --max-episode-steps"
        )

    def step(self) -> bool:
        """Step every environment once. False: all episodes are done.

        Raises:
            AgentError: the agent's actions are none that the environment takes.
            EnvError: an environment raised an error.
        """
        actions, _, self._state = self._agent.act(self._seen, self._state, self._exploration, greedy=self._greedy)
        if self._check is not None:
            self._check.first(actions, self._env.num_envs)
        if self._changes is not None:
            actions = self._changes.of(np.asarray(actions), self._seen)
        self.steps += 1
        try:
            stepped = self._env.step(actions)
        except Exception:
            if self._check is not None:
                self._check.look(actions, self._env.num_envs)
            raise
        self._seen = self._frames.push(stepped.observation, stepped.starts)
        if self._expected is not None:
            self._expected.note(stepped, self._seen, self._owed)
        if self._state and stepped.starts.any():
            self._state = zeroed(self._state, stepped.starts)
        if self._changes is not None:
            self._changes.stepped(actions, stepped.starts, [episode.env for episode in stepped.episodes])
        for episode in stepped.episodes:
            if self._owed[episode.env]:
                self._owed[episode.env] -= 1
                self.returns.append(episode.episode_return)
                self._told.add(episode.metrics)
        return any(self._owed)

    def compared(self) -> dict[str, Any]:
        """Lengths and ends of the episodes, and their discounted returns beside what the agent expected."""
        return {} if self._expected is None else self._expected.report()

    @property
    def metrics(self) -> dict[str, Spread]:
        """What environments told of these episodes."""
        return self._told.added

    @property
    def mean(self) -> float:
        return float(np.mean(self.returns))
