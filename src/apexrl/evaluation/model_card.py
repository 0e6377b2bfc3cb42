"""The card of a published agent: what it is, how well it does, and how to run it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from apexrl.config import Config
from apexrl.run.folder import env_name


def model_card(
    config: Config,
    summary: Mapping[str, Any],
    returns: Sequence[float],
    interval: tuple[float, float] | None,
    where: str,
    licence: str,
    film: str = "",
) -> str:
    """Markdown with the metadata that Hugging Face reads.

    Args:
        returns: of the final evaluation of the best weights.
        interval: 95 %, of their mean; None: there are too few.
        where: of the agent, as ``apexrl eval`` takes it.
        licence: of the weights.
        film: a video of an episode beside the card; empty: there is none.
    """
    agent, env = config.agent.agent, env_name(config)
    mean = sum(returns) / len(returns)
    between = f" (95 % interval {interval[0]:.2f} to {interval[1]:.2f})" if interval else ""
    last = summary.get("last_weights_return")
    rows = {
        "agent": f"`{agent}` in topology `{config.topology}`",
        "environment": f"`{env}`" + (f" with `{config.env.env_kwargs}`" if config.env.env_kwargs else ""),
        "mean return of the best weights": f"**{mean:.2f}**{between}, over {len(returns)} episodes on fresh seeds",
        "mean return of the last weights": "not measured" if last is None else f"{last:.2f}, on the same seeds",
        "evaluation": f"actions {config.evaluator.eval_actions}, ε {config.evaluator.eval_epsilon:g}",
        "seed of the run": str(config.seed),
        "seed of evaluations": str(config.evaluator.eval_seed or "fresh ones each time"),
        "environment steps": f"{int(summary.get('env_steps', 0)):,}",
        "updates": f"{int(summary.get('updates', 0)):,}",
        "time of training": f"{float(summary.get('wall_seconds', 0.0)) / 60:.1f} minutes",
        "ended by": str(summary.get("stopped_by")),
        "versions": ", ".join(f"{name} {version}" for name, version in dict(summary.get("versions", {})).items()),
        "licence": licence,
    }
    table = "\n".join(f"| {name} | {value} |" for name, value in rows.items())
    seen = f"[A film of one episode]({film})\n\n" if film else ""
    return f"""---
{_metadata(agent, env, mean, licence)}
---

# {agent} on {env}

Trained with [apexrl](https://pypi.org/project/apexrl/). One run with one seed: its score says little of other seeds.

{seen}| | |
|---|---|
{table}

## Play it

```
pip install 'apexrl[train,hub]'
apexrl eval {where}
```

```python
import apexrl

agent = apexrl.load("{where}")
action = agent.act(observation)
```

Weights are in safetensors; nothing here is a pickle. Code of an environment or an agent that is not installed runs only
with `--trust MODULE`.

## Train it again

```
apexrl train config.toml
```
"""


def _metadata(agent: str, env: str, mean: float, licence: str) -> str:
    """YAML; JSON's texts are YAML's."""
    name, score = json.dumps(f"{agent} on {env}"), f"{mean:.4g}"
    return f"""library_name: apexrl
license: {json.dumps(licence)}
pipeline_tag: reinforcement-learning
tags: [reinforcement-learning, deep-reinforcement-learning, {json.dumps(env)}, {json.dumps(agent)}]
model-index:
- name: {name}
  results:
  - task: {{type: reinforcement-learning, name: reinforcement-learning}}
    dataset: {{type: {json.dumps(env)}, name: {json.dumps(env)}}}
    metrics:
    - {{type: mean_reward, value: {score}, name: mean_reward, verified: false}}"""
