"""Running normalisation: observations to mean 0 and deviation 1, rewards so that discounted returns have size 1.

The statistics are averages over the batches that are learned from, so they cover what all actors have seen. They are a
parameter group like any other: they travel with the weights, lie in checkpoints, are averaged between learners and
applied by parameter servers. What the replay holds stays raw; every read is scaled alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from apexrl.agents.env_facts import byte_fields
from apexrl.agents.sequence_batch import Sequences
from apexrl.agents.sequence_steps import as_transitions
from apexrl.agents.trained_network import Trained
from apexrl.agents.transition_batch import Observation, Transitions
from apexrl.agents.unroll_batch import Unrolls
from apexrl.config import AgentConfig
from apexrl.errors import NonFiniteError
from apexrl.protocols import NORMALIZER
from apexrl.spec import ACHIEVED_GOAL, DESIRED_GOAL, PRESENT, EnvSpec, is_team

GROUP = NORMALIZER
VARIANCE_FLOOR = 1e-8  # as Stable-Baselines3's VecNormalize has it
ROUNDING = 1e-10  # of a mean², in float32: a constant observation must not become noise
SMALLEST_DEVIATION = 1e-4  # of targets (Hessel et al. 2019, section 4)
_LARGEST_BYTE = 255  # by which encoders divide bytes
SMALLEST_RATE = 1e-3  # ours: the averages forget after about a thousand updates, as the policy changes what is seen
SETTLING_UPDATES, PERIOD_UPDATES = 100, 10  # ours: afterwards every tenth batch is measured


class Moments(nn.Module):
    """Mean and variance of each observation field; of rewards E[R], E[R²], E[|R|], E[d], E[d²]; of values' targets
    E[G], E[G²].

    Args:
        shapes: observation field -> shape of one frame.
        rewards: whether rewards are measured.
        targets: whether values' targets are.
    """

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], rewards: bool, targets: bool) -> None:
        super().__init__()

        def constant(name: str, value: Tensor) -> nn.Parameter:
            parameter = nn.Parameter(value, requires_grad=False)
            self.register_parameter(name.replace(".", "_"), parameter)
            return parameter

        self.means = {name: constant(f"mean/{name}", torch.zeros(shape)) for name, shape in shapes.items()}
        self.variances = {name: constant(f"variance/{name}", torch.ones(shape)) for name, shape in shapes.items()}
        self.rewards = constant("rewards", torch.zeros(5)) if rewards else None
        self.targets = constant("targets", torch.zeros(2)) if targets else None

    @property
    def fresh(self) -> bool:
        """Whether nothing was ever measured."""
        measured = [*self.means.values(), *([] if self.rewards is None else [self.rewards])]
        return not any(bool(one.any()) for one in measured)

    def scaled(self, name: str, observation: Tensor, limit: float) -> Tensor:
        """(x − mean) / deviation, within ± ``limit``, float32 [..., *shape]."""
        mean, variance = self.means[name], self.variances[name]
        factor = (variance + VARIANCE_FLOOR).addcmul_(mean, mean, value=ROUNDING).rsqrt_()
        return (observation.to(torch.float32) - mean).mul_(factor).clamp_(-limit, limit)


class RunningAverage:
    """The optimizer of statistics: the "gradient" is a batch's, and the parameters are the average of all so far."""

    def __init__(self) -> None:
        self.learning_rate = 0.0  # nothing depends on it
        self.state: dict[str, Tensor] = {}
        self.steps = torch.zeros(())  # counted on the CPU

    def step(self, vector: Tensor, gradient: Tensor) -> None:
        self.steps += 1
        vector.lerp_(gradient, max(1.0 / float(self.steps), SMALLEST_RATE))


class Averaged(Trained[Moments]):
    """Statistics in the place of a network in training."""

    compressible = False

    def optimizer_for(self, vector: Tensor, start: int = 0) -> RunningAverage:
        return RunningAverage()

    def step(self, gradient: Tensor | None = None) -> None:
        """Take a batch's statistics into the averages."""
        self.optimizer.step(self.parameters.vector, self.gradient if gradient is None else gradient)

    learning_rate = 0.0  # averages have none

    def anneal(self, left: float) -> None:
        """There is no step size to fall."""


class Seen(NamedTuple):
    """What one batch says."""

    observation: dict[str, Tensor]  # name -> [N, *shape], raw
    reward: Tensor  # [N], raw, of one step or of n
    discount: Tensor  # [N], of what follows


class ValueUnits(NamedTuple):
    """Values are ``deviation`` · output + ``mean``; both scalars."""

    mean: Tensor
    deviation: Tensor

    def of(self, outputs: Tensor) -> Tensor:
        """Values of a network's outputs, of any shape."""
        return torch.addcmul(self.mean, self.deviation, outputs)


class Normalizer:
    """Scales what an agent reads, as ``normalize_observations``, ``normalize_returns`` and ``reward_scale`` say.

    Fields of images, of categories, of uint8 and of variable length stay as they are: encoders scale or encode them.
    Bytes whose largest number is another than 255 are stretched for them (``byte_maximum``). So stays who of a team is
    there, and for an encoder of the user's own (``network``) all bytes and all of three dimensions: it may be an image
    to it that is too small for convolutions of ours. What each agent of a team sees has one scale for all of them, as
    they share a network: who of them sees it must not be lost.

    Args:
        targets: values are learned in units of their targets, too (PopArt).
    """

    def __init__(self, spec: EnvSpec, config: AgentConfig, device: torch.device, targets: bool = False) -> None:
        self._limit = config.observation_clip
        self._reward_scale = config.reward_scale
        self._n_step = config.n_step
        self._stacked = spec.stack > 1
        shapes = {
            name: spec.each_sees(name).shape
            for name, field in spec.observation.items()
            if field.dtype not in ("uint8", "bool")
            and not (name == PRESENT and spec.of_team)
            and not (name in spec.categories or spec.is_image(name) or spec.varies(name))
            and not (config.network and len(spec.each_sees(name).shape) == 3)
        }
        self._byte_maximum = config.byte_maximum
        stretched = config.byte_maximum != _LARGEST_BYTE and not config.network
        self._bytes = byte_fields(spec) if stretched else ()
        self._of_team = [name for name in shapes if spec.of_team and is_team(name)]
        # What was achieved and what is desired are compared: one scale for both.
        self._goals = (
            config.normalize_observations
            and DESIRED_GOAL in shapes
            and shapes[DESIRED_GOAL] == shapes.get(ACHIEVED_GOAL)
        )
        if self._goals:
            del shapes[ACHIEVED_GOAL]
        moments = Moments(shapes if config.normalize_observations else {}, config.normalize_returns, targets)
        self._moments = moments.to(device)
        used = next(moments.parameters(), None) is not None
        self._trained = Averaged(GROUP, self._moments, config) if used else None
        self._plain = ValueUnits(torch.zeros((), device=device), torch.ones((), device=device))
        self._established = False
        self._size: Tensor | None = self._moments.rewards  # moments that rewards are scaled by

    @property
    def networks(self) -> dict[str, Trained[Any]]:
        """What an agent adds to its own ``networks``: nothing where nothing is measured."""
        return {} if self._trained is None else {GROUP: self._trained}

    # Reading

    def observation(self, observation: Observation) -> Observation:
        """Scaled, name -> [..., *shape]; what is not measured is handed on."""
        means, limit = self._moments.means, self._limit
        if self._bytes:
            observation = {
                name: self._stretched(value) if name in self._bytes else value for name, value in observation.items()
            }
        if not means:
            return observation
        scaled = {
            name: self._moments.scaled(name, value, limit) if name in means else value
            for name, value in observation.items()
        }
        if self._goals:
            scaled[ACHIEVED_GOAL] = self._moments.scaled(DESIRED_GOAL, observation[ACHIEVED_GOAL], limit)
        return scaled

    def _stretched(self, values: Tensor) -> Tensor:
        """Bytes as if ``byte_maximum`` were 255, int32: encoders divide by 255 what is no float."""
        return torch.div(values.to(torch.int32) * _LARGEST_BYTE, self._byte_maximum, rounding_mode="floor")

    def reward(self, reward: Tensor) -> Tensor:
        """In the units in which returns are learned, like ``reward``, on whatever device that is: servers on a GPU
        score new items on the CPU."""
        if self._size is not None:
            reward = reward * (self._reward_scale / self.return_size(self._size)).to(reward.device)
        elif self._reward_scale != 1.0:
            reward = reward * self._reward_scale
        return reward

    def reads_from(self) -> int:
        """Where the moments lie by which rewards are scaled; 0: they are not."""
        return 0 if self._size is None else self._size.data_ptr()

    @property
    def unit(self) -> float:
        """A learned return of 1, in the environment's units."""
        rewards = self._moments.rewards
        return (1.0 if rewards is None else float(self.return_size(rewards))) / self._reward_scale

    @staticmethod
    def return_size(rewards: Tensor) -> Tensor:
        """√E[G²] of the discounted return G = R + d·G', a scalar; 1 while no reward was seen.

        With R and d independent from step to step, E[G] = E[R] / (1 − E[d]) and
        E[G²] = (E[R²] + 2·E[R]·E[d]·E[G]) / (1 − E[d²]). It is made from rewards alone: from learned values, an error
        of these would feed itself. Nor is it less than E[R²] / E[|R|], the size of rewards that are not 0: where these
        are rare, returns will be of their size as soon as something is learned.

        Args:
            rewards: E[R], E[R²], E[|R|], E[d], E[d²].
        """
        first, second, size, discount, discount_square = rewards.unbind()
        mean = first / (1.0 - discount).clamp(min=1e-4)
        square = (second + 2.0 * first * discount * mean) / (1.0 - discount_square).clamp(min=1e-4)
        return torch.where(second > 0, torch.maximum(square.sqrt(), second / size), 1.0)

    def values(self) -> ValueUnits:
        """The units in which values are learned, on the scale of scaled rewards."""
        targets = self._moments.targets
        if targets is None:
            return self._plain
        mean, square = targets.unbind()
        deviation = (square - mean.square()).clamp(min=SMALLEST_DEVIATION**2).sqrt()
        return ValueUnits(mean.clone(), torch.where(square > 0, deviation, 1.0))

    # Batches, as agents learn from them

    def transitions(self, batch: Transitions | Sequences) -> Transitions:
        """Scaled; the steps of sequences as transitions."""
        if isinstance(batch, Sequences):
            return as_transitions(self.sequences(batch), self._n_step)
        if self._trained is None and self._reward_scale == 1.0 and not self._bytes:
            return batch
        return batch._replace(
            observation=self.observation(batch.observation),
            next_observation=self.observation(batch.next_observation),
            reward=self.reward(batch.reward),
        )

    def sequences(self, batch: Sequences) -> Sequences:
        return batch._replace(
            warming=self.observation(batch.warming),
            observation=self.observation(batch.observation),
            reward=self.reward(batch.reward),
        )

    def unrolls(self, batch: Unrolls) -> Unrolls:
        return batch._replace(observation=self.observation(batch.observation), reward=self.reward(batch.reward))

    # Learning

    def groups(self, batch: Transitions | Sequences | Unrolls, updates: int) -> dict[str, Tensor]:
        """What an agent adds to the groups of its ``gradients``: the statistics of a batch that is not scaled yet.

        Args:
            updates: made so far.

        Raises:
            NonFiniteError: what was seen has no mean or variance, which would spoil the averages for ever.
        """
        trained = self._trained
        if trained is None:
            return {}
        if updates < SETTLING_UPDATES or updates % PERIOD_UPDATES == 0 or not self._established:
            fresh = not self._established and self._moments.fresh
            self._established = True
            trained.gradient.copy_(trained.parameters.vector)  # what a batch without steps says
            self._measure(self._seen(batch), trained.parameters.split(trained.gradient))
            if not bool(torch.isfinite(trained.gradient).all()):
                self._established = False  # the next batch is measured whatever its number
                raise NonFiniteError(
                    f"update {updates + 1}: an observation or a reward is NaN, infinite or above 1e19; the parameters "
                    "were left as they were"
                )
            if fresh:  # the first update is to be scaled, too
                trained.parameters.vector.copy_(trained.gradient)
            rewards = self._moments.rewards
            if rewards is not None:  # so are the first rewards
                self._size = rewards if rewards[1] > 0 else trained.parameters.split(trained.gradient)["rewards"]
        return {GROUP: trained.gradient}

    def measure_targets(self, targets: Tensor) -> None:
        """Put values' targets [N] of this batch into the gradient of ``groups``."""
        if self._trained is not None and self._moments.targets is not None and len(targets):
            into = self._trained.parameters.split(self._trained.gradient)["targets"]
            into.copy_(torch.stack((targets.mean(), targets.square().mean())))

    def step(self, groups: Mapping[str, Tensor], head: nn.Linear | None = None) -> None:
        """Take a batch's statistics into the averages, if they are there.

        Args:
            head: of the values, which are to stay what they were in new units (van Hasselt et al. 2016, section 2.1).
        """
        if self._trained is None or GROUP not in groups:
            return
        before = self.values()
        self._trained.step(groups[GROUP])
        after = self.values()
        if head is not None and self._moments.targets is not None:
            with torch.no_grad():
                head.weight.mul_(before.deviation / after.deviation)
                head.bias.mul_(before.deviation).add_(before.mean - after.mean).div_(after.deviation)

    def _measure(self, seen: Seen, into: Mapping[str, Tensor]) -> None:
        """The variance is the batch's own, and (batch's mean − mean)² besides: over many batches that adds up to the
        variance of all (Chan et al. 1979), however few rows each has. Before the first one there is no mean."""
        if not len(seen.reward):
            return
        for name, mean in self._moments.means.items():
            rows = seen.observation[name].to(torch.float32)
            if name in self._of_team:
                rows = rows[seen.observation[PRESENT].bool()]  # [agents that are there, *shape]
                if not len(rows):
                    continue
            variance, found = torch.var_mean(rows, dim=0, correction=0)
            into[f"mean/{name}".replace(".", "_")].copy_(found)
            if mean.any():
                variance = variance + (found - mean).square_()
            into[f"variance/{name}".replace(".", "_")].copy_(variance)
        if self._moments.rewards is not None:
            reward, discount = seen.reward, seen.discount
            rewards = (reward.mean(), reward.square().mean(), reward.abs().mean())
            into["rewards"].copy_(torch.stack((*rewards, discount.mean(), discount.square().mean())))

    def _seen(self, batch: Transitions | Sequences | Unrolls) -> Seen:
        """Steps that were taken, newest frames only; goals of both kinds together."""
        names = [*self._moments.means, *([ACHIEVED_GOAL] if self._goals else []), *([PRESENT] if self._of_team else [])]
        if isinstance(batch, Transitions):
            newest = {name: batch.observation[name] for name in names}
            reward, discount = batch.reward, batch.discount
        else:
            taken = batch.mask.t()  # [B, T]
            newest = {name: batch.observation[name][:, : taken.shape[1]][taken] for name in names}
            reward, discount = batch.reward[batch.mask], batch.discount[batch.mask]
        if self._stacked:
            newest = {name: value[:, -1] for name, value in newest.items()}
        if self._goals:
            newest[DESIRED_GOAL] = torch.cat((newest[DESIRED_GOAL], newest.pop(ACHIEVED_GOAL)))
        return Seen(newest, reward, discount)
