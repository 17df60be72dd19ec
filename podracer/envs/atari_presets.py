"""Atari as three bodies of work set it up: keyword arguments of EnvPool's Atari environments.

What all of them share is EnvPool's own default: the maximum of the last two frames, greyscale, 84x84.
`max_episode_steps` counts agent decisions, each `frame_skip` frames long.
"""

from collections.abc import Mapping
from typing import Any

PRESETS: Mapping[str, Mapping[str, Any]] = {
    # "IMPALA: Scalable Distributed Deep-RL with Importance Weighted Actor-Learner Architectures",
    # Espeholt et al., arXiv 1802.01561, table G.1: action repeat 4, stack of 4, an episode ends with a
    # life, rewards clipped to [-1, 1], up to 30 no-ops, 108,000 frames (30 minutes). Actions are not sticky.
    "impala": {
        "frame_skip": 4,
        "stack_num": 4,
        "noop_max": 30,
        "episodic_life": True,
        "reward_clip": True,
        "use_fire_reset": False,
        "repeat_action_probability": 0.0,
        "full_action_space": False,
        "max_episode_steps": 27_000,
    },
    # `wrap_deepmind` of OpenAI Baselines on `NoFrameskip-v4`: as above, FIRE pressed after a reset where the
    # game waits for it, and Gym's limit of 400,000 frames.
    "baselines": {
        "frame_skip": 4,
        "stack_num": 4,
        "noop_max": 30,
        "episodic_life": True,
        "reward_clip": True,
        "use_fire_reset": True,
        "repeat_action_probability": 0.0,
        "full_action_space": False,
        "max_episode_steps": 100_000,
    },
    # "Revisiting the Arcade Learning Environment: Evaluation Protocols and Open Problems for General Agents",
    # Machado et al., arXiv 1709.06009: sticky actions with probability 0.25, all 18 actions, an episode is a
    # whole game, no random no-ops, action repeat 5, 18,000 frames (5 minutes). The environment's reward is not
    # clipped; agents that want it clipped (DQN in that paper) set `env.reward_clip=1`.
    "machado18": {
        "frame_skip": 5,
        "stack_num": 4,
        "noop_max": 1,
        "episodic_life": False,
        "reward_clip": False,
        "use_fire_reset": False,
        "repeat_action_probability": 0.25,
        "full_action_space": True,
        "max_episode_steps": 3_600,
    },
}
