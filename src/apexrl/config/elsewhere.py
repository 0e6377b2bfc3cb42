"""Names that other libraries have for settings: Stable-Baselines3, CleanRL, RLlib, Sample Factory, Tianshou.

An unknown name that is one of theirs is answered by ours. ``docs/how-to/migrate/hyperparameters.md`` explains each.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_NAMES: Final[Mapping[str, str]] = {
    "env_steps": "total_timesteps timesteps total_steps train_for_env_steps num_timesteps",
    "capacity": "buffer_size replay_size replay_buffer_size replay_capacity",
    "min_size": "learning_starts warmup_steps start_steps num_steps_sampled_before_learning_starts",
    "learning_rate": "lr q_lr critic_lr",
    "policy_learning_rate": "policy_lr actor_lr",
    "temperature_learning_rate": "alpha_lr ent_coef_lr",
    "polyak": "tau",
    "updates_per_step": "gradient_steps train_freq train_frequency utd utd_ratio replay_ratio training_intensity",
    "target_period_updates": "target_update_interval target_network_frequency target_network_update_freq",
    "policy_period_updates": "policy_delay policy_frequency",
    "unroll_length": "n_steps num_steps rollout rollout_length rollout_fragment_length",
    "epochs": "n_epochs num_epochs update_epochs num_sgd_iter",
    "minibatches": "num_minibatches n_minibatches num_batches_per_epoch",
    "batch_size": "minibatch_size train_batch_size train_batch_size_per_learner",
    "entropy_coefficient": "ent_coef entropy_coef entropy_coeff exploration_loss_coeff",
    "value_coefficient": "vf_coef vf_loss_coeff value_loss_coeff",
    "clip_ratio": "clip_range clip_coef clip_param ppo_clip_ratio eps_clip",
    "value_clip": "clip_range_vf vf_clip_param ppo_clip_value",
    "gradient_clip": "max_grad_norm grad_clip",
    "gae_lambda": "lambda_ lam",
    "gamma": "discount discount_factor",
    "n_step": "n_step_return estimation_step nstep",
    "rho_clip": "vtrace_rho vtrace_clip_rho_threshold",
    "c_clip": "vtrace_c",
    "actors": "num_workers num_env_runners num_actors",
    "envs_per_actor": "n_envs num_envs num_envs_per_worker num_envs_per_env_runner",
    "exploration_steps": "exploration_fraction exploration_timesteps",
    "epsilon": "exploration_final_eps end_e final_epsilon",
    "sigma": "exploration_noise action_noise",
    "target_noise": "policy_noise target_policy_noise",
    "target_noise_clip": "noise_clip",
    "hidden": "net_arch hidden_sizes fcnet_hiddens encoder_mlp_layers",
    "memory": "use_rnn use_lstm recurrent",
    "recurrent_units": "rnn_size lstm_hidden_size lstm_cell_size",
    "stack": "frame_stack env_framestack n_stack framestack",
    "normalize_observations": "norm_obs normalize_input normalize_obs",
    "normalize_returns": "norm_reward normalize_reward",
    "normalize_advantages": "normalize_advantage norm_adv",
    "anneal": "anneal_lr",
    "alpha": "per_alpha replay_alpha prioritized_replay_alpha priority_alpha",
    "beta": "per_beta replay_beta prioritized_replay_beta priority_beta",
    "priority_eps": "prioritized_replay_eps",
    "atoms": "n_atoms num_atoms",
    "env": "env_id environment",
    "agent": "algo algorithm",
    "out": "log_dir train_dir save_dir tensorboard_log",
    "name": "exp_name experiment run_name",
    "eval_period_steps": "eval_freq",
    "eval_episodes": "n_eval_episodes evaluation_duration",
    "device": "cuda",
    "initial_weights": "load_model model_path init_from pretrained",
}

ELSEWHERE: Final[Mapping[str, str]] = {other: ours for ours, others in _NAMES.items() for other in others.split()}
"""Another library's name -> the setting's."""
