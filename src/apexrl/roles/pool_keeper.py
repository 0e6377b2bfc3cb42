"""The role that keeps a run's pool of earlier policies: it adds the newest one now and then, and rates them all."""

from __future__ import annotations

import time
from functools import partial

import numpy as np

from apexrl.agents.setting_relevance import check_evaluation
from apexrl.config import Config, EvaluatorConfig
from apexrl.config.agent_game_settings import OWN
from apexrl.config.convert import override
from apexrl.errors import ApexrlError, ConfigError
from apexrl.protocols import Agent, Arrays, Context, WeightsReader
from apexrl.roles.checkpointing import Saving, folder_of
from apexrl.roles.pool_players import PoolPlayers, sources
from apexrl.roles.role_envs import role_envs
from apexrl.roles.role_traits import RoleTraits
from apexrl.roles.trial import Trial
from apexrl.run.opponent_pool import Member, OpponentPool, Ratings
from apexrl.run.ratings import rated
from apexrl.run.status import Work
from apexrl.spec import EnvSpec

_REST_SECONDS = 0.05  # between looks for new weights
_NEWEST_SECONDS = 1.0  # between writes of the newest policy (ours)


class PoolKeeper:
    """Keeps ``pool/`` of the run folder (``run.opponent_pool``), as TLeague's model pool (Sun et al. 2020, arXiv
    2011.12895) and AlphaStar's league (Vinyals et al. 2019) do.

    It writes the newest weights as they are published, adds them as a policy every ``pool_period_steps``, and lets
    them play matches with the policies of the pool: whoever has played least comes next. Of these come Elo ratings,
    and how often each is beaten, by which actors draw their opponents. All lies in files that are replaced whole: who
    takes over after it, in a restarted or resumed run, goes on with them. What cannot be written is tried again later.
    """

    traits = RoleTraits("pool_keeper", Work("matches", "matches/s", "evaluating"), writes_to_folder=True)

    def __init__(self, context: Context, *, config: Config, spec: EnvSpec, weights: WeightsReader) -> None:
        from apexrl.agents import agent_class
        from apexrl.envs import FrameStack

        settings = config.env
        self._context, self._settings, self._weights = context, settings, weights
        self._agent: Agent = agent_class(config.agent.agent)(spec, config.agent, "cpu", context.seed)
        self._pool = OpponentPool(context.folder, context.fence)
        self._ratings = self._pool.ratings() or Ratings()
        self._seeds = np.random.SeedSequence(context.seed)
        self._spec = spec
        tell = partial(context.send, "log", level="warning")
        self._players = PoolPlayers(config, context.folder, context.seed, tell=tell, clock=context.clock)
        games = min(config.evaluator.eval_envs, settings.match_games)
        self._env = role_envs(
            context, config, games, context.seed, cores=1, changing=False, players=lambda _: self._players
        )
        self._frames = FrameStack(spec.stack, self._env.num_envs, spec.observation)
        sampled = "sampled" if _draws(config) else "greedy"
        self._acting = EvaluatorConfig(eval_actions=sampled)  # type: ignore[arg-type]
        self._version = 0  # of the newest weights here
        self._newest: Arrays = {}
        self._written_at = -np.inf
        self._saving = Saving(context, 0.0, "its pool")
        self._unwritten = False  # the ratings have changed since they were written
        self._trial: Trial | None = None
        self._member: Member | None = None
        self._next_match = context.clock()
        others = sources(settings)
        self._rates = not others or any(one.run == OWN for one in others)  # else its policies play nobody's part

    def step(self) -> bool:
        """One step of the match in progress, or the start of one. False: there is nothing to do yet."""
        moved = self._pull()
        if self._trial is None:
            if not (self._rates and self._ratings.members) or self._context.clock() < self._next_match:
                if not moved:
                    time.sleep(min(self._context.patience, _REST_SECONDS))
                return False
            self._next_match = self._context.clock() + self._settings.match_period_seconds
            self._begin()
        if self._trial is None:
            return False
        with self._context.env_call():
            running = self._trial.step()
        if not running:
            self._rate(self._trial)
            self._trial = None
        return True

    def close(self) -> None:
        """Write the newest policy once more, close the environments."""
        try:
            self._pull(last=True)
        except (OSError, ApexrlError) as error:
            self._context.send("log", text=f"the newest policy was not written: {error}", level="warning")
        with self._context.env_call():
            self._env.close()

    def _pull(self, last: bool = False) -> bool:
        """Take published weights, write them, and add them to the pool when it is time."""
        found = self._weights.latest(newer_than=self._version)
        if found is not None:
            self._version, arrays = found
            self._newest = {name: np.array(array) for name, array in arrays.items()}
        now = self._context.clock()
        env_steps, members = self._context.total("env_steps"), self._ratings.members
        later = not members or env_steps >= members[-1].env_steps + self._settings.pool_period_steps
        due = later and not (members and members[-1].version == self._version)  # the same weights are no other policy
        changed = found is not None and (last or now >= self._written_at + _NEWEST_SECONDS)
        if not self._newest or not (due or changed or self._unwritten) or not (last or self._saving.due):
            return False
        self._written_at = now
        if last:
            self._keep(env_steps, due)
            return True
        return self._saving.now(lambda: self._keep(env_steps, due))

    def _keep(self, env_steps: int, add: bool) -> None:
        folder_of(self._context)  # one that is gone is not made anew
        self._pool.put_newest(self._newest, self._version, env_steps)
        if add:
            self._add(env_steps)
        if self._unwritten:
            self._write()

    def _add(self, env_steps: int) -> None:
        ratings = self._ratings
        member = Member(f"policy-{env_steps:09d}", env_steps, self._version, ratings.elo)
        if any(one.name == member.name for one in ratings.members):
            return
        self._pool.add(self._newest, member)
        ratings.members.append(member)
        while (leaves := ratings.leaving(self._settings.pool_size)) is not None:
            ratings.members.remove(leaves)
        self._unwritten = True

    def _begin(self) -> None:
        """A match of the newest policy with whoever has played least, of equals the latest; not with those whose
        weights cannot be read."""
        rarest_first = sorted(self._ratings.members, key=lambda member: (member.games, -member.env_steps))
        playing = (one for one in rarest_first if self._players.can_play(f"{OWN}:{one.name}", self._spec))
        self._member = next(playing, None)
        if self._member is None:
            return
        self._players.rival = f"{OWN}:{self._member.name}"
        self._agent.load(self._newest)
        seed = int(self._seeds.spawn(1)[0].generate_state(1)[0])
        with self._context.env_call():
            games = self._settings.match_games
            self._trial = Trial(self._agent, self._env, self._frames, games, seed, settings=self._acting)

    def _rate(self, trial: Trial) -> None:
        member, ratings = self._member, self._ratings
        assert member is not None
        self._context.count(matches=1)
        ratings.matches += 1
        won = trial.metrics.get("won")
        if won is None or member not in ratings.members:
            return
        k = self._settings.elo_k
        ratings.elo, changed = rated(ratings.elo, member.elo, won.mean, won.episodes, k)
        if member is not ratings.members[0]:
            member.elo = changed
        member.played(won.mean, won.episodes)
        ratings.version, self._unwritten = self._version, True
        if self._saving.due:
            self._saving.now(self._write)
        rates = [one.win_rate for one in ratings.members]
        self._context.send(
            "ratings", elo=ratings.elo, size=len(rates), win_rate=float(np.mean(rates)), least_win_rate=min(rates)
        )

    def _write(self) -> None:
        folder_of(self._context)
        self._pool.put_ratings(self._ratings)
        self._unwritten = False


def _draws(config: Config) -> bool:
    """Whether the agent's actions are drawn from its policy, so that matches are no single game played again."""
    try:
        check_evaluation(override(config, {"eval_actions": "sampled"}))
    except ConfigError:
        return False
    return True
