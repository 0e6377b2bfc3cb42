"""A JAX training loop on the replay: an actor-critic with V-trace (Espeholt et al. 2018) on unrolls, CartPole-v1.

    pip install jax 'gymnasium>=1.1'
    python examples/jax_loop.py            # --steps 40000 for a short look

The replay gives NumPy arrays of fixed shapes, which go into jitted functions as they are: nothing is traced twice. With
``sampler="fifo"`` every unroll is trained on once, as a queue would have it; with ``"prioritized"`` the same loop would
replay them. Acting may move to other processes: a writer is all that they need.
"""

from __future__ import annotations

import argparse
import sys
import time

import gymnasium
import numpy as np

from apexrl.replay import Field, Replay

try:
    import jax
    import jax.numpy as jnp
except ImportError:
    sys.exit("this example needs JAX, which apexrl itself does not: pip install jax")

ENVS, BATCH, LENGTH = 16, 16, 10  # environments; unrolls per update; steps per unroll
GAMMA, LEARNING_RATE, ENTROPY, VALUE = 0.99, 5e-3, 0.01, 0.1
FIELDS = {
    "observation": Field((4,), "float32"),
    "action": Field((), "int32"),
    "log_prob": Field((), "float32"),  # of the action, when it was taken
}


def initial(key):
    sizes, heads = (4, 64, 64), 3  # two logits and a value
    keys = jax.random.split(key, len(sizes))
    scales = [(2 / n) ** 0.5 for n in sizes[:-1]] + [0.01]
    shapes = list(zip(sizes, (*sizes[1:], heads), strict=True))
    return [(scale * jax.random.normal(k, shape), jnp.zeros(shape[1]))
            for k, scale, shape in zip(keys, scales, shapes, strict=True)]  # fmt: skip


def network(params, x):
    """[..., 4] -> logits [..., 2], value [...]."""
    for w, b in params[:-1]:
        x = jnp.tanh(x @ w + b)
    out = x @ params[-1][0] + params[-1][1]
    return out[..., :2], out[..., 2]


@jax.jit
def act(params, observation, key, step):
    """Actions [B] and their log-probabilities."""
    log_probs = jax.nn.log_softmax(network(params, observation)[0])
    action = jax.random.categorical(jax.random.fold_in(key, step), log_probs).astype(jnp.int32)
    return action, jnp.take_along_axis(log_probs, action[:, None], 1)[:, 0]


def v_trace(values, log_ratio, data):
    """Value targets [B, T] and policy-gradient advantages [B, T] (Espeholt et al. 2018, §4.1; c̄ = ρ̄ = 1).

    At a final observation (``mask`` False) no step was taken: nothing flows back through it, so a truncated episode
    bootstraps from its value and a new one begins clean.
    """
    rho = jnp.minimum(1.0, jnp.exp(log_ratio)) * data["mask"]
    delta = rho * (data["reward"] + data["discount"] * values[:, 1:] - values[:, :-1])

    def back(later, now):
        later = now[0] + now[1] * later
        return later, later

    inputs = (delta.T, (data["discount"] * rho).T)  # time first
    corrections = jax.lax.scan(back, jnp.zeros(len(delta)), inputs, reverse=True)[1].T
    targets = values[:, :-1] + corrections
    next_targets = jnp.concatenate([targets[:, 1:], values[:, -1:]], 1)
    return targets, rho * (data["reward"] + data["discount"] * next_targets - values[:, :-1])


def loss(params, data):
    logits, values = network(params, data["observation"])  # [B, T + 1, 2], [B, T + 1]
    log_probs = jax.nn.log_softmax(logits[:, :-1])
    log_prob = jnp.take_along_axis(log_probs, data["action"][..., None], 2)[..., 0]
    targets, advantages = jax.lax.stop_gradient(v_trace(values, log_prob - data["log_prob"], data))
    entropy = -(jnp.exp(log_probs) * log_probs).sum(-1)
    each = -advantages * log_prob + VALUE * (targets - values[:, :-1]) ** 2 - ENTROPY * entropy
    return (each * data["mask"]).sum() / data["mask"].sum()


@jax.jit
def update(params, mean, square, count, data):
    """One step of Adam (Kingma & Ba 2015)."""
    gradients = jax.grad(loss)(params, data)
    mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, mean, gradients)
    square = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, square, gradients)
    rate = LEARNING_RATE * jnp.sqrt(1 - 0.999**count) / (1 - 0.9**count)
    params = jax.tree.map(lambda p, m, v: p - rate * m / (jnp.sqrt(v) + 1e-8), params, mean, square)
    return params, mean, square


def train(steps: int, seed: int) -> tuple[list[float], int]:
    """The returns of all finished episodes, and the number of updates."""
    key, params = jax.random.key(seed), initial(jax.random.key(seed + 1))
    mean = square = jax.tree.map(jnp.zeros_like, params)
    env = gymnasium.make_vec("CartPole-v1", num_envs=ENVS)
    observation, _ = env.reset(seed=seed)
    returns, scores, updates = [], np.zeros(ENVS), 0
    with Replay(8 * BATCH, FIELDS, kind="unroll", length=LENGTH, gamma=GAMMA, sampler="fifo", streams=ENVS) as replay:
        writer = replay.writer(streams=ENVS)
        for step in range(steps // ENVS):
            action, log_prob = (np.asarray(value) for value in act(params, observation, key, step))
            next_observation, reward, terminated, truncated, _ = env.step(action)
            writer.append({
                "observation": observation, "action": action, "log_prob": log_prob,
                "reward": reward, "terminated": terminated, "truncated": truncated,
            })  # fmt: skip
            observation = next_observation
            scores += reward
            for i in np.flatnonzero(terminated | truncated):
                returns.append(scores[i])
                scores[i] = 0.0
            if len(replay) >= BATCH:
                updates += 1
                params, mean, square = update(params, mean, square, updates, replay.sample(BATCH).data)
    return returns, updates


def main() -> None:
    parser = argparse.ArgumentParser(description="A JAX actor-critic on the replay, CartPole-v1")
    parser.add_argument("--steps", type=int, default=150_000, help="environment steps")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    began = time.monotonic()
    returns, updates = train(arguments.steps, arguments.seed)
    seconds = time.monotonic() - began
    print(
        f"{arguments.steps / seconds:.0f} steps/s, {updates / seconds:.0f} updates/s, {len(returns)} episodes, "
        f"mean return of the last 20: {np.mean(returns[-20:]):.1f}"
    )


if __name__ == "__main__":
    main()
