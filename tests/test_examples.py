"""The examples of an agent and of an environment of one's own, as a user names them, through both runners."""

from pathlib import Path

import pytest

from podracer import api
from podracer.config import load_config

EXAMPLES = Path(__file__).parents[1] / "experiments" / "examples"


@pytest.mark.parametrize("runner", ["anakin", "sebulba"])
def test_the_examples_learn_together(monkeypatch, runner):
    monkeypatch.syspath_prepend(EXAMPLES)
    overrides = [
        f"runner={runner}",
        "agent=custom",
        "agent.make=my_agent:ActorCritic",
        "agent.kwargs.learning_rate=1e-2",
        "env=custom_jax",
        "env.make=my_env:make_corridor",
        "env.kwargs.length=5",
        "env.num_envs=16",
        "total_env_steps=3e4",
        "network.hidden_sizes=[16]",
        "evaluation.num_evaluations=0",
        "evaluation.num_episodes=16",
        "logger=quiet",
    ]
    result = api.train(load_config(overrides))
    # Who goes right arrives each time, for the reward 1; a random walk is often out of time before.
    assert result["final_return"] == 1.0


def test_a_setting_that_the_example_lacks_is_refused(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    overrides = ["agent=custom", "agent.make=my_agent:ActorCritic", "agent.kwargs.learning_rte=1e-2"]
    with pytest.raises(ValueError, match="learning_rate"):
        load_config(overrides)
