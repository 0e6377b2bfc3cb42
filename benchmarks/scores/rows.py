"""The rows of the scores page: what is run, and what others have published for it."""

from __future__ import annotations

from dataclasses import dataclass

ENVS = "benchmarks.scores.envs:"
SIMBA = "mean of the seeds (in brackets), v4: result files of dojeon-ai/SimbaV2, commit 14fafb27"
ZOO = "one run: benchmark.md of DLR-RM/rl-baselines3-zoo"

PONG = ("--atari", "--stack", "4", "--reward-clip", "1", "--stop-at-return", "19.5", "--eval-episodes", "5",
        "--eval-period-seconds")  # fmt: skip
ON_A_GPU = ("--actors", "13", "--envs-per-actor", "8", "--unroll-length", "64", "--batch-size", "64")
SHALLOW = ("--encoder", "shallow", "--image-units", "256")  # a third of the work of DQN's network

# As rl-zoo's TQC has them, so far as there is a flag for it.
FETCH = ("--hindsight", "future", "--gamma", "0.95", "--learning-rate", "0.001", "--min-size", "1000",
         "--normalize-observations", "--eval-episodes", "50")  # fmt: skip
FETCH_PUSH = (*FETCH, "--batch-size", "2048", "--polyak", "0.05", "--hidden", "512", "512", "512")


@dataclass(frozen=True)
class Published:
    """A published mean return."""

    name: str
    points: tuple[tuple[int, float], ...]
    """Environment steps and mean return."""
    source: str


@dataclass(frozen=True)
class Row:
    """One agent on one environment."""

    env: str
    agent: str
    topology: str
    env_steps: int
    flags: tuple[str, ...] = ()
    """More flags of ``apexrl train``; without any, a row shows the defaults."""
    preset: str = ""
    variant: str = ""
    """Tells it from another row of the same agent; such a row is run where it is named alone."""
    published: tuple[Published, ...] = ()

    @property
    def name(self) -> str:
        """Names its records."""
        env = self.env.rpartition(":")[2].replace("/", "-")
        parts = (env, self.agent, self.topology, self.variant)
        return "-".join(filter(None, parts)).lower()


def _mujoco(env: str, curves: dict[str, tuple[float, float]], steps: int = 300_000) -> list[Row]:
    """``curves``: of each agent the published returns after 100k and 300k steps."""
    agents = {"sac": "sac", "td3": "", "crossq": "crossq", "simba_v2": "simbaV2_utd2"}
    return [
        Row(
            env,
            agent,
            "apex",
            steps,
            published=(
                Published(f"{column} (10)", ((100_000, curves[column][0]), (300_000, curves[column][1])), SIMBA),
            )
            if column
            else (),
        )
        for agent, column in agents.items()
    ]


ROWS = [
    *_mujoco("HalfCheetah-v5", {"sac": (6156, 8593), "crossq": (8153, 10433), "simbaV2_utd2": (7328, 9892)}),
    *_mujoco("Hopper-v5", {"sac": (1103, 2160), "crossq": (2887, 2404), "simbaV2_utd2": (2821, 3502)}),
    *_mujoco("Walker2d-v5", {"sac": (690, 2470), "crossq": (3882, 4755), "simbaV2_utd2": (3023, 5499)}),
    *_mujoco("Ant-v5", {"sac": (747, 3532), "crossq": (2939, 5384), "simbaV2_utd2": (3881, 6200)}),
    *(
        Row(
            env,
            "ppo",
            "impala",
            1_000_000,
            published=(Published("rl-zoo PPO, tuned", ((1_000_000, figure),), ZOO),),
        )
        for env, figure in (
            ("HalfCheetah-v5", 5819),
            ("Hopper-v5", 2410),
            ("Walker2d-v5", 3479),
            ("Ant-v5", 1327),
        )
    ),
    *(
        Row(f"MinAtar/{game}-v1", agent, topology, 5_000_000)
        for game in ("Asterix", "Breakout", "Freeway", "Seaquest", "SpaceInvaders")
        for agent, topology in (("dqn", "apex"), ("rainbow", "apex"), ("pqn", "impala"), ("impala", "impala"))
    ),
    *(
        Row(
            "ALE/Pong-v5",
            agent,
            topology,
            10_000_000,
            (*PONG, "120", *more),
            published=(Published("rl-zoo PPO", ((10_000_000, 20.99),), ZOO),),
        )
        for agent, topology, more in (
            ("ppo", "impala", (*SHALLOW, "--epochs", "3")),
            ("pqn", "impala", SHALLOW),
            ("impala", "impala", SHALLOW),
            ("appo", "sample_factory", SHALLOW),
            ("dueling_dqn", "apex", ()),
            ("r2d2", "apex", ()),
        )
    ),
    Row(
        "ALE/Pong-v5",
        "ppo",
        "impala",
        10_000_000,
        (*PONG, "8", *SHALLOW, "--epochs", "3", *ON_A_GPU),
        variant="gpu",
        published=(Published("rl-zoo PPO", ((10_000_000, 20.99),), ZOO),),
    ),
    Row(
        "LunarLander-v3",
        "ppo",
        "impala",
        1_500_000,
        published=(Published("rl-zoo PPO", ((1_000_000, 242.1),), ZOO),),
    ),
    Row(
        "BipedalWalker-v3",
        "ppo",
        "impala",
        5_000_000,
        published=(Published("rl-zoo PPO", ((5_000_000, 213.3),), ZOO),),
    ),
    Row(
        "BipedalWalker-v3",
        "sac",
        "apex",
        500_000,
        published=(Published("rl-zoo SAC", ((500_000, 297.7),), ZOO),),
    ),
    Row(
        "BipedalWalkerHardcore-v3",
        "ppo",
        "impala",
        20_000_000,
        published=(Published("rl-zoo PPO", ((100_000_000, 122.4),), ZOO),),
    ),
    Row(f"{ENVS}SmallCarRacing-v0", "ppo", "impala", 1_000_000, ("--stack", "2")),
    # Published are steps of dm_control; here a step is an action, which is taken twice: half as many
    *(
        Row(
            f"{ENVS}{task}-v0",
            "sac",
            "apex",
            150_000,
            published=(Published(f"sac ({seeds})", ((50_000, early), (150_000, late)), SIMBA),),
        )
        for task, seeds, early, late in (("CheetahRun", 3, 178, 413), ("WalkerRun", 2, 111, 390))
    ),
    *(
        Row(
            f"gymnasium_robotics:{task}-v4",
            agent,
            "apex",
            steps,
            flags,
            published=(Published("rl-zoo TQC, v1", ((steps, figure),), ZOO),),
        )
        for task, steps, flags, figure in (
            ("FetchReach", 20_000, (*FETCH, "--hidden", "64", "64"), -1.659),
            ("FetchPush", 1_000_000, FETCH_PUSH, -8.799),
        )
        for agent in ("tqc", "sac")
    ),
]
