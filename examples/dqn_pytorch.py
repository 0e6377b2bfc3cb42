"""A plain PyTorch DQN in one file, with this replay where its deque was.

    python examples/dqn_pytorch.py            # about half a minute; --steps 5000 for a short look

CartPole-v1, after the DQN of the PyTorch tutorials. Each line that changed follows what it was. What that brings:
prioritized sampling with importance weights, n-step returns that stop at an episode's end, bootstrapping from the true
last observation of a truncated episode, and writers in any number of processes.
"""

from __future__ import annotations

import argparse
import copy
import time

import gymnasium
import numpy as np
import torch
from torch import nn

from apexrl.replay import Field, Replay  # was: from collections import deque, namedtuple; import random

GAMMA, N_STEP, BATCH, LEARNING_RATE = 0.99, 3, 128, 1e-3
WARM_UP, EXPLORE_STEPS, TARGET_EVERY = 500, 5_000, 250  # steps


def train(steps: int, seed: int) -> list[float]:
    """The returns of all finished episodes."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)  # this network is too small for more
    rng = np.random.default_rng(seed)
    env = gymnasium.make_vec("CartPole-v1", num_envs=1)  # a vector of one: it resets itself and takes arrays
    q = nn.Sequential(nn.Linear(4, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 2))
    target = copy.deepcopy(q)
    optimizer = torch.optim.AdamW(q.parameters(), lr=LEARNING_RATE, fused=True)

    fields = {"observation": Field((4,), "float32"), "action": Field((), "int64")}
    # was: Transition = namedtuple("Transition", "state action next_state reward"); memory = deque([], maxlen=10000)
    replay = Replay(10_000, fields, kind="transition", n_step=N_STEP, gamma=GAMMA, min_size=WARM_UP, seed=seed)
    writer = replay.writer()

    observation, _ = env.reset(seed=seed)
    returns, score = [], 0.0
    for step in range(steps):
        epsilon = max(0.05, 1 - step / EXPLORE_STEPS)
        if rng.random() < epsilon:
            action = rng.integers(2, size=1)
        else:
            with torch.no_grad():
                action = q(torch.from_numpy(observation)).argmax(1).numpy()
        next_observation, reward, terminated, truncated, _ = env.step(action)

        # was: memory.append(Transition(state, action, None if terminated else next_state, reward))
        writer.append({"observation": observation, "action": action, "reward": reward, "terminated": terminated,
                       "truncated": truncated})  # fmt: skip
        observation = next_observation
        score += reward[0]
        if terminated[0] or truncated[0]:
            returns.append(score)
            score = 0.0

        if len(replay) < WARM_UP:  # was: if len(memory) < BATCH
            continue
        # was: transitions = random.sample(memory, BATCH); batch = Transition(*zip(*transitions)); torch.cat(…) of each
        batch = replay.sample(BATCH, beta=0.4)
        data = {name: torch.from_numpy(array) for name, array in batch.data.items()}
        value = q(data["observation"]).gather(1, data["action"][:, None])[:, 0]
        with torch.no_grad():  # double DQN
            best = q(data["next_observation"]).argmax(1, keepdim=True)
            bootstrap = target(data["next_observation"]).gather(1, best)[:, 0]
        # was: expected = reward + GAMMA * next_values, where next_values is 0 for a next_state of None
        expected = data["reward"] + data["discount"] * bootstrap
        each = nn.functional.smooth_l1_loss(value, expected, reduction="none")
        loss = (torch.from_numpy(batch.weights) * each).mean()  # was: loss = nn.SmoothL1Loss()(value, expected)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        replay.update_priorities(batch.keys, (expected - value).abs().detach().numpy())  # was: nothing
        if step % TARGET_EVERY == 0:
            target.load_state_dict(q.state_dict())
    return returns


def main() -> None:
    parser = argparse.ArgumentParser(description="A plain PyTorch DQN on the replay, CartPole-v1")
    parser.add_argument("--steps", type=int, default=20_000, help="environment steps")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    began = time.monotonic()
    returns = train(arguments.steps, arguments.seed)
    rate = arguments.steps / (time.monotonic() - began)
    print(f"{rate:.0f} steps/s, {len(returns)} episodes, mean return of the last 20: {np.mean(returns[-20:]):.1f}")


if __name__ == "__main__":
    main()
