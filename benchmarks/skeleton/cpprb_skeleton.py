"""Ape-X as its users write it on cpprb's MPPrioritizedReplayBuffer: the skeleton, filled in with care.

    python benchmarks/skeleton/cpprb_skeleton.py --seconds 15     # prints one JSON object

Explorers step one CartPole each, act with NumPy (PyTorch would take five times as long for one observation), gather
100 transitions in a local buffer, compute |TD| of all at once, and add them. The learner is PyTorch: double, dueling,
Adam, importance weights, target copied every 200 updates; it sends weights through a queue every 100 updates. The
multi-process buffer knows no n-step, so n is 1. Flags and queues are looked at once in 20 steps.

Run by ``run.py``.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before NumPy: three processes on few cores
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import json
import multiprocessing
import time
from copy import deepcopy
from ctypes import c_int64
from typing import Any

import gymnasium as gym
import numpy as np
from cpprb import MPPrioritizedReplayBuffer, ReplayBuffer
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Weights = list[Floats]

UNITS, ACTIONS, GAMMA = 256, 2, 0.99
BATCH, CAPACITY, WARM_UP, LOCAL = 64, 100_000, 1_000, 100
TARGET_UPDATES, SEND_UPDATES, LOOK_STEPS = 200, 100, 20
LEARNING_RATE, GRADIENT_CLIP, BETA = 1e-3, 10.0, 0.4
FIELDS = {
    "obs": {"shape": 4, "dtype": np.float32},
    "act": {"dtype": np.int64},
    "rew": {"dtype": np.float32},
    "next_obs": {"shape": 4, "dtype": np.float32},
    "done": {"dtype": np.float32},
}


def q_values(weights: Weights, observation: Floats) -> Floats:
    """The learner's network in NumPy: ``[..., 4]`` -> ``[..., 2]``."""
    w1, b1, w2, b2, w3, b3 = weights
    hidden = np.maximum(observation @ w1 + b1, 0)
    hidden = np.maximum(hidden @ w2 + b2, 0)
    out = hidden @ w3 + b3  # [V, A0, A1]
    advantage = out[..., 1:]
    q: Floats = out[..., :1] + advantage - advantage.mean(axis=-1, keepdims=True)
    return q


def explore(index: int, explorers: int, replay: Any, done: Any, queue: Any, counts: Any) -> None:
    rng = np.random.default_rng(index)
    epsilon = 0.4 ** (1 + 7 * index / max(1, explorers - 1))
    env = gym.make("CartPole-v1", disable_env_checker=True)
    local = ReplayBuffer(LOCAL, FIELDS)
    weights: Weights = queue.get()
    observation, _ = env.reset(seed=index)
    step = 0
    while True:
        step += 1
        if step % LOOK_STEPS == 0:
            counts[index] = step
            if done.is_set():
                return
            while not queue.empty():
                weights = queue.get()
        if rng.random() < epsilon:
            action = int(rng.integers(ACTIONS))
        else:
            action = int(q_values(weights, observation).argmax())
        following, reward, terminated, truncated, _ = env.step(action)
        local.add(obs=observation, act=action, rew=reward, next_obs=following, done=terminated)
        observation = env.reset()[0] if terminated or truncated else following
        if local.get_stored_size() == LOCAL:
            gathered = local.get_all_transitions()
            local.clear()
            rows = np.arange(LOCAL)
            now, later = q_values(weights, gathered["obs"]), q_values(weights, gathered["next_obs"])
            target = gathered["rew"][:, 0] + GAMMA * (1 - gathered["done"][:, 0]) * later.max(axis=1)
            replay.add(**gathered, priorities=np.abs(target - now[rows, gathered["act"][:, 0]]))


def learn(replay: Any, queues: list[Any], counts: Any, seconds: float) -> dict[str, float]:
    import torch
    from torch import nn

    torch.set_num_threads(1)
    torch.manual_seed(0)

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(
                nn.Linear(4, UNITS), nn.ReLU(), nn.Linear(UNITS, UNITS), nn.ReLU(), nn.Linear(UNITS, 1 + ACTIONS)
            )

        def forward(self, observation: torch.Tensor) -> torch.Tensor:
            out = self.layers(observation)
            advantage = out[:, 1:]
            q: torch.Tensor = out[:, :1] + advantage - advantage.mean(dim=1, keepdim=True)
            return q

    online = Network()
    target = deepcopy(online).requires_grad_(False)
    optimizer = torch.optim.Adam(online.parameters(), lr=LEARNING_RATE, fused=True)

    def send() -> None:
        arrays = [parameter.detach().numpy().T.copy() for parameter in online.parameters()]
        for queue in queues:
            queue.put(arrays)

    def update() -> None:
        sample = replay.sample(BATCH, BETA)
        observation, following = torch.from_numpy(sample["obs"]), torch.from_numpy(sample["next_obs"])
        with torch.no_grad():
            best = online(following).argmax(dim=1, keepdim=True)
            later = target(following).gather(1, best)
            wanted = torch.from_numpy(sample["rew"]) + GAMMA * (1 - torch.from_numpy(sample["done"])) * later
        delta = wanted - online(observation).gather(1, torch.from_numpy(sample["act"]))
        weights = torch.from_numpy(sample["weights"].astype(np.float32)).unsqueeze(1)
        loss = (0.5 * weights * delta.square()).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(online.parameters(), GRADIENT_CLIP)
        optimizer.step()
        replay.update_priorities(sample["indexes"], delta.detach().abs().numpy()[:, 0])

    send()
    while replay.get_stored_size() < WARM_UP:
        time.sleep(0.01)
    updates, began, first, start_updates, start_steps = 0, 0.0, time.perf_counter(), 0, 0
    while True:
        update()
        updates += 1
        if updates % SEND_UPDATES == 0:
            send()
        if updates % TARGET_UPDATES == 0:
            target.load_state_dict(online.state_dict())
        now = time.perf_counter()
        if not began and now - first >= 2.0:  # steady
            began, start_updates, start_steps = now, updates, sum(counts)
        if began and now - began >= seconds:
            break
    elapsed = now - began
    return {
        "env_steps_per_second": (sum(counts) - start_steps) / elapsed,
        "updates_per_second": (updates - start_updates) / elapsed,
        "seconds": elapsed,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=15.0, help="of the steady state")
    parser.add_argument("--explorers", type=int, default=2)
    options = parser.parse_args()
    context = multiprocessing.get_context("fork")
    replay = MPPrioritizedReplayBuffer(CAPACITY, FIELDS, alpha=0.6, eps=1e-6, ctx=context)
    done = context.Event()
    queues = [context.SimpleQueue() for _ in range(options.explorers)]
    counts = context.RawArray(c_int64, options.explorers)
    explorers = [
        context.Process(target=explore, args=(i, options.explorers, replay, done, queues[i], counts), daemon=True)
        for i in range(options.explorers)
    ]
    for process in explorers:
        process.start()
    figures = learn(replay, queues, counts, options.seconds)
    done.set()
    for process in explorers:
        process.join(2.0)
        process.kill()
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
