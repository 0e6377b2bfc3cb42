"""DQN and its extensions, as switches that compose.

Double, dueling, n-step and prioritized are Ape-X's (Horgan et al. 2018, section 3.1). With noisy layers and categories
besides it is Rainbow (Hessel et al. 2018). ``agents.bootstrap`` has the value of the later state, greedy or Munchausen;
``agents.return_heads`` what is learned of the return, its mean or its distribution.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from apexrl.agents import diagnostics, memory, trained_agent
from apexrl.agents.accelerated import accelerated, is_accelerated
from apexrl.agents.bootstrap import targets_of
from apexrl.agents.cuda_graphs import cuda_graphs
from apexrl.agents.decision import Decision
from apexrl.agents.discrete_actions import Choices
from apexrl.agents.layer_choice import layer_choice
from apexrl.agents.normalizer import Normalizer
from apexrl.agents.resets import Resets
from apexrl.agents.return_heads import Fresh, midpoints, returns_of
from apexrl.agents.rng_state import RandomGenerator, acting_generator, noise_generator, seeded_layers
from apexrl.agents.sequence_batch import items_time_first
from apexrl.agents.sequence_steps import item_priorities, of_sequences, recorded_at, steps_of
from apexrl.agents.trained_network import Loss, Trained
from apexrl.agents.transition_batch import Observation, Transitions, as_array, on_device, to_device
from apexrl.config import AgentConfig
from apexrl.losses.offline import conservative_penalty
from apexrl.networks import NOTHING, Differentiable, Draw, QNetwork, differentiable, scaled
from apexrl.networks.recall import Present
from apexrl.protocols import Acted, Arrays, State
from apexrl.spec import EnvSpec, Field

NOT_COMPUTED = torch.zeros(())
HELD_NOISE, HELD_STEPS = "held_noise", "held_steps"


class DQN:
    """Acts ε-greedily on Q-values, or by noisy layers, and learns them from prioritized n-step transitions.

    In comments B is the batch, n the number of actions, N that of the atoms, quantiles or fractions of a distribution.

    Args:
        spec: the environment; its actions must be Discrete or MultiDiscrete.
        device: of PyTorch, ``"cpu"`` or ``"cuda…"``.
        seed: of the network's first weights, of exploration, and of all that a pass through the network draws.

    Raises:
        AgentError: the actions are a box, or too many; or switches that do not go together.
    """

    recordable = True

    def __init__(self, spec: EnvSpec, config: AgentConfig, device: str = "cpu", seed: int = 0) -> None:
        self._config = config
        self._device = torch.device(device)
        self._choices = Choices(spec, config.agent)
        self._targets = targets_of(config)
        self._returns = returns_of(config, self._device)
        self._implicit = config.distribution == "implicit_quantile"
        self._few = max(1, config.quantile_samples // 2) if self._implicit else 0  # fractions that a choice reads
        self._rng = acting_generator(seed)
        make = partial(
            QNetwork,
            spec,
            config.hidden,
            config.dueling,
            outputs=self._returns.outputs,
            cosines=config.cosines if self._implicit else 0,
            noisy_sigma=config.noisy_sigma if config.noisy else 0.0,
            image_units=config.image_units,
            network=config.network,
            choice=layer_choice(config),
            memory=memory.memory_choice(config),
        )
        with seeded_layers(seed):
            network = make().to(self._device)
        self._network = Trained("", network, config, target=True, target_acts=config.target_acts)
        self._online = differentiable(network)
        self._by_hand = not (config.network or config.conservative_weight)
        self._certain = not (network.noise_size or self._implicit)  # nothing in it is drawn
        self._normalizer = Normalizer(spec, config, self._device)
        self._memory = memory.memory_of(config, self._device, network)
        self.item = self._memory.item
        self._stacked = spec.stack > 1
        self.networks: dict[str, Trained[Any]] = {"q": self._network, **self._normalizer.networks}
        self.generators: dict[str, RandomGenerator] = {"rng": self._rng}
        if network.noise_size:
            self.generators["noise"] = self._noise = noise_generator(seed)
        self._graphs = cuda_graphs(self)
        self._given: list[Draw] = []  # drawn for the next passes, which else draw by themselves
        self._resets = Resets(self._network, make, config, seed) if config.reset_period_updates else None
        if self._resets is not None:
            self.generators["resets"] = self._resets.rng
        self.updates = 0  # learner updates made

    @property
    def step_spec(self) -> dict[str, Field]:
        """Every step records the fields from which priorities are computed; every sequence the state before it."""
        fields = self._returns.fields(self._choices.n)
        if self.item.kind == "sequence":
            fields = {name: replace(field, windowed=True) for name, field in fields.items()}
        return fields | self._memory.fields

    # Acting

    def act(self, observations: Arrays, state: State, exploration: NDArray[np.float32], greedy: bool = False) -> Acted:
        """Actions, int64 [B] or [B, k], with what priorities need. ``exploration`` is ε of each environment, [B].

        Every environment has noise of its own, drawn anew every ``noise_period`` of its steps and when an episode
        begins, and half as many fractions as in learning (Dabney et al. 2018b: 32). A greedy action uses no noise and
        always the same fractions.
        """
        rows = len(exploration)
        draw, state = (self._greedy_draw(rows), state) if greedy else self._acting_draw(rows, state)
        shown = on_device(self._choices.masks.networks_see(observations), self._device)
        seen = self._memory.now(self._normalizer.observation(shown), state)
        answers = self._returns.read(self._online.values(seen, draw)).cpu()
        q = torch.from_numpy(self._choices.masks.acted(as_array(self._returns.means(answers)), observations))  # [B, n]
        actions = q.numpy().argmax(axis=1)
        if not greedy:
            actions = self._choices.epsilon_greedy(actions, exploration, self._rng, observations)
        recorded = self._returns.recorded(answers, q, actions)
        return self._memory.acted(self._choices.to_env(actions), recorded, seen, state, greedy)

    def decide(self, observation: Observation, state: Mapping[str, Tensor]) -> Decision:
        """The greedy action of raw observations, in PyTorch alone; see ``Decides``."""
        seen = Present(self._normalizer.observation(observation), state)
        draw = self._greedy_draw(next(iter(seen.values())).shape[0])  # `len` would fix the number of rows in an export
        q = self._returns.means(self._returns.read(self._network.network(seen, draw)))
        q = self._choices.masks.values(q, observation)
        return Decision(self._choices.to_env_tensor(q.argmax(dim=1)), seen.after)

    def expected_returns(self, observations: Arrays) -> NDArray[np.float32]:
        """max_a Q(s, a) [B] of episodes' first observations, as greedy acting reads Q."""
        rows = len(next(iter(observations.values())))
        seen = self._memory.now(self._normalizer.observation(on_device(observations, self._device)), None)
        answers = self._returns.read(self._online.values(seen, self._greedy_draw(rows)))
        q = self._choices.masks.values(self._returns.means(answers), seen)
        return as_array(q.amax(dim=1) * self._normalizer.unit)

    def priorities(self, items: Arrays) -> NDArray[np.float32]:
        """|δ| [N], or for categories the divergence, from what was recorded while acting.

        Horgan et al. 2018, section 3: no second forward pass. The later state counts as the actor's network saw it.
        """
        if self.item.kind == "sequence":
            return self._sequence_priorities(items)
        action = self._choices.index_array(cast("NDArray[np.int64]", items["action"]))
        reward, discount = torch.from_numpy(items["reward"]), torch.from_numpy(items["discount"])
        fresh = Fresh(torch.from_numpy(action), self._normalizer.reward(reward), discount, items)
        return cast("NDArray[np.float32]", self._returns.priorities(fresh, self._targets).numpy())

    def _sequence_priorities(self, items: Arrays) -> NDArray[np.float32]:
        config, names = self._config, tuple(self._returns.fields(self._choices.n))
        known = items_time_first(items, ("reward", "discount", "mask", "action", *names), self.item.burn_in)
        reward, discount, mask, action, *recorded = known
        if self._stacked:
            recorded = [values[:, :, -1] for values in recorded]  # the replay stacks them as it does observations
        steps = steps_of(self._normalizer.reward(reward), discount, mask, config.n_step)
        at = recorded_at(steps, dict(zip(names, recorded, strict=True)))
        index = self._choices.index(action.flatten(0, 1)[steps.rows])
        fresh = Fresh(index, steps.reward, steps.discount, {name: value.numpy() for name, value in at.items()})
        return as_array(of_sequences(mask, self._returns.priorities(fresh, self._targets), config.priority_eta))

    # Learning

    prepare = memory.prepare

    @accelerated  # by `_loss_by_hand`; another loss is trained by autograd. Editing this one? Remove this line
    def loss(self, batch: Transitions) -> Loss:
        """mean(w·L(y − Q(s, a))) with y = R + d·Q⁻(s', argmax_a Q(s', a)); of distributions the same, with Z for Q.
        With ``conservative_weight`` also CQL's penalty, of the means of Z (Kumar et al. 2020, equation 4).

        Every pass through the network has noise and fractions of its own (Fortunato et al. 2018, section 3.1).
        """
        action = self._choices.index(batch.action)  # [B]
        draw = self._draw(len(action))
        z = self._network.network(batch.observation, draw)  # [B, n], or [B, n, N]
        next_z = None
        if self._config.double:
            next_z = self._online.values(batch.next_observation, self._draw(len(action), self._few))
        target = self.target(batch, action, next_z)  # [B], or [B, N]
        losses = self._returns.losses(z, draw.fractions, action, target)  # [B]
        if self._config.conservative_weight:
            q = self._choices.masks.values(self._returns.means(self._returns.read(z)), batch.observation)  # [B, n]
            penalty = conservative_penalty(q[None], q.gather(1, action[:, None]).T, batch.weights)
            return Loss(
                (batch.weights * losses).mean() + self._config.conservative_weight * penalty,
                self._returns.errors(z, action, target),
                z,
            )
        return Loss((batch.weights * losses).mean(), self._returns.errors(z, action, target), z)

    def target(self, batch: Transitions, action: Tensor, next_z: Tensor | None) -> Tensor:
        """y: what the answer for the action taken should be, [B], or a distribution [B, N]; without gradient.

        An implicit network is asked at N fractions for values, and at others, as many as acting reads, for the choice
        between actions or the soft policy: of the same ones the best mean would be the luckiest (Dabney et al. 2018b,
        section 2.3, π_β; Vieillard et al.'s M-IQN). One pass reads both, as its features serve all fractions.

        Args:
            next_z: the online network's answers for the later state, [B, n] or [B, n, N], which choose the action
                (double Q-learning); None: the target network's choose.
        """
        returns, targets, rows = self._returns, self._targets, len(batch.reward)
        apart = self._few if next_z is None else 0
        draw = self._draw(rows, self._config.quantile_samples + apart)
        later = returns.read(self._target.values(batch.next_observation, draw))
        if next_z is not None:
            chooser = returns.means(returns.read(next_z))  # [B, n]
        elif apart:
            chooser, later = returns.means(later[..., -apart:]), later[..., :-apart]
        else:
            chooser = returns.means(later)
        masks, reward = self._choices.masks, batch.reward
        chooser = masks.values(chooser, batch.next_observation)
        if targets.looks_back:
            before = returns.read(self._target.values(batch.observation, self._draw(rows, self._few)))
            reward = targets.reward(reward, masks.values(returns.means(before), batch.observation), action)
        return returns.backed_up(reward, batch.discount, targets.value(later, chooser))

    def _scaled(self, batch: Transitions) -> Transitions:
        return self._normalizer.transitions(batch)

    def _measure(self, z: Tensor, batch: Transitions) -> diagnostics.Metrics:
        answers = self._returns.read(z)
        q = self._choices.masks.mean(self._returns.means(answers), batch.observation) * self._normalizer.unit
        edges = diagnostics.support_edges(answers) if self._config.distribution == "categorical" else {}
        return {"q": q, **edges}

    def _differentiated(self, batch: Transitions, measured: bool) -> Loss:
        """As ``trained_agent.differentiated``, by hand where that is faster; priorities are those of what was drawn."""
        if is_accelerated(self.loss) and is_accelerated(self._returns.losses) and self._by_hand:
            found = self._loss_by_hand(batch, measured)
        else:
            found = trained_agent.differentiated(self, batch)
        return found._replace(priorities=item_priorities(batch, found.priorities, self._config.priority_eta))

    def _loss_by_hand(self, batch: Transitions, measured: bool) -> Loss:
        """``loss`` with its gradient written out: the accelerator of ``gradients``, which it leaves in the network.

        Both states go through the network in one pass. The loss itself is computed only where ``measured``.
        """
        returns, action = self._returns, self._choices.index(batch.action)
        _ = self._network.gradient  # attached from here on
        draw = self._draw(len(action))
        later = (batch.next_observation, self._draw(len(action), self._few)) if self._config.double else (None, NOTHING)
        z, next_z = self._online.forward(batch.observation, later[0], draw, later[1])
        target = self.target(batch, action, next_z)
        towards, errors = returns.gradient(z, draw.fractions, action, target, batch.weights)
        self._online.backward(towards)
        if not measured:
            return Loss(NOT_COMPUTED, errors, z)
        losses = returns.losses(z, draw.fractions, action, target)
        return Loss((batch.weights * losses).mean(), errors, z)

    @property
    def by_graph(self) -> Callable[[Transitions], Loss] | None:
        """Scales and differentiates a batch by a CUDA graph; None: this agent has none."""
        graphs = self._graphs
        if graphs is None:
            return None
        return lambda batch: graphs.run(self._passes, batch, *self._draws(len(batch.weights)))

    def _passes(self, batch: Transitions, *drawn: Draw) -> Loss:
        self._given = list(drawn)
        for network in (self._online, self._target):
            network.refresh()  # what is derived from parameters belongs to the graph
        return self._differentiated(self._scaled(batch), False)

    def _draws(self, rows: int) -> tuple[Draw, ...]:
        """Those of an update, in the order in which ``loss`` takes them."""
        few, many = self._few, self._config.quantile_samples
        samples = (many, few, many) if self._config.double else (many, many + few)
        return tuple(self._draw(rows, each) for each in (*samples, *(few,) * self._targets.looks_back))

    def apply(self, groups: Mapping[str, Tensor]) -> None:
        """One step of the optimizer; then the target follows, as ``target_period_updates`` or ``polyak`` says. After
        every ``reset_period_updates`` both are reset."""
        self._network.step(groups["q"])
        self._normalizer.step(groups)
        self._online.refresh()
        self.updates += 1
        if self._network.follow(self.updates):
            self._target.refresh()
        if self._resets is not None and self._resets.after(self.updates):
            self.refresh()

    gradients = trained_agent.gradients
    update, weights, load = trained_agent.update, trained_agent.weights, trained_agent.load
    state_dict, load_state_dict = trained_agent.state_dict, trained_agent.load_state_dict
    anneal, horizon = trained_agent.anneal, trained_agent.horizon

    def refresh(self) -> None:
        """Parameters were changed, or moved to other memory, from outside: forget what was derived from them."""
        self._online = differentiable(self._network.network)
        self.__dict__.pop("_target", None)

    @cached_property
    def _target(self) -> Differentiable:
        return differentiable(self._network.target)

    def _greedy_draw(self, rows: int) -> Draw:
        """Of greedy acting: no noise, and always the same fractions."""
        few = self._few
        return Draw(None, midpoints(few, self._device).expand(rows, few)) if few else NOTHING

    def _acting_draw(self, rows: int, state: State) -> tuple[Draw, State]:
        """Of acting that explores, and the state with it: the noise that an environment holds, and for how many steps
        it has."""
        size, period = self._network.network.noise_size, self._config.noise_period
        if not size or period == 1:
            return self._draw(rows, self._few, self._noise_of(rows)), state
        given = state or {}
        steps = given.get(HELD_STEPS, np.zeros((rows, 1), np.int32))
        held = np.array(given.get(HELD_NOISE, np.zeros((rows, size), np.float32)))
        due = steps[:, 0] % period == 0  # zeros: an episode begins
        if due.any() and (fresh := self._noise_of(int(due.sum()))) is not None:
            held[due] = as_array(fresh)
        draw = self._draw(rows, self._few, torch.from_numpy(held).to(self._device))
        return draw, {**given, HELD_NOISE: held, HELD_STEPS: steps + 1}

    def _noise_of(self, *rows: int) -> Tensor | None:
        """f(ε) [*rows, noise_size] of all noisy layers; None: there is none."""
        size = self._network.network.noise_size
        return scaled(torch.randn((*rows, size), generator=self._noise).to(self._device)) if size else None

    def _draw(self, rows: int, samples: int = 0, noise: Tensor | None = None) -> Draw:
        """The random numbers of one pass through the network: ``noise``, or fresh noise for all rows, and τ ~ U(0, 1)
        of each."""
        if self._certain:
            return NOTHING
        if self._given:
            return self._given.pop(0)
        fractions = None
        if noise is None:
            noise = self._noise_of()
        if self._implicit:
            shape = (rows, samples or self._config.quantile_samples)
            fractions = to_device(self._rng.random(shape, np.float32), self._device)
        return Draw(noise, fractions)
