"""Play episodes with an agent that `apexrl export RUN --onnx agent.onnx` wrote. Needs no apexrl and no PyTorch.

python examples/deploy_onnx.py agent.onnx CartPole-v1 --episodes 3
"""

import argparse

import gymnasium as gym
import numpy as np
import onnxruntime

parser = argparse.ArgumentParser()
parser.add_argument("file")
parser.add_argument("env")
parser.add_argument("--episodes", type=int, default=3)
wanted = parser.parse_args()
policy = onnxruntime.InferenceSession(wanted.file, providers=["CPUExecutionProvider"])
outputs = [output.name for output in policy.get_outputs()]  # action, and next_… of each recurrent state
observation, *others = policy.get_inputs()
states = [one for one in others if f"next_{one.name}" in outputs]
rng = np.random.default_rng()
draw = {"uniform": rng.random, "normal": rng.standard_normal}  # inputs of `--actions sampled`
noises = [one for one in others if one.name in draw]
stack = int(policy.get_modelmeta().custom_metadata_map["stack"])

env = gym.make(wanted.env)
for episode in range(wanted.episodes):
    seen, _ = env.reset(seed=episode)
    frames = [np.zeros_like(seen)] * (stack - 1) + [seen]
    state = {one.name: np.zeros((1, *one.shape[1:]), np.float32) for one in states}  # an episode begins
    total, over = 0.0, False
    while not over:
        now = np.stack(frames) if stack > 1 else seen
        noise = {one.name: draw[one.name]((1, one.shape[1]), np.float32) for one in noises}
        said = dict(zip(outputs, policy.run(None, {observation.name: now[None], **state, **noise}), strict=True))
        state = {name: said[f"next_{name}"] for name in state}
        seen, reward, terminated, truncated, _ = env.step(said["action"][0])
        frames = [*frames[1:], seen]
        total, over = total + float(reward), terminated or truncated
    print(f"episode {episode}: return {total:g}")
