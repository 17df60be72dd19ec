"""A run that was saved and restored ends as one that went straight through, bit for bit."""

import jax
import numpy as np
import pytest

from podracer.build import build
from podracer.config import load_config
from podracer.runner import Due
from podracer.trees import children, subtree, to_arrays
from tests.runners.doubles import FAR, Factory, make_sebulba, run_all

SMALL = ["network=mlp", "network.hidden_sizes=[8]", "agent.unroll_length=4", "evaluation.num_episodes=0"]
SMALL += ["env=catch", "env.kwargs.rows=4", "env.num_envs=8", "total_env_steps=640", "logger=quiet"]
ONE = ["mesh.actor=1", "mesh.learner=1"]
RUNNERS = {
    "anakin": ["runner=anakin", "mesh.learner=1"],
    "lockstep": ["runner=sebulba", *ONE, "runner.mode=lockstep"],
    "fixed lag 1": ["runner=sebulba", *ONE],
    "fixed lag 2": ["runner=sebulba", *ONE, "runner.lag=2"],
}
AGENTS = {
    "ppo": ["agent=ppo", "agent.num_minibatches=2", "agent.normalise_rewards=true"],
    "impala": ["agent=impala"],
    "pqn": ["agent=pqn", "agent.num_minibatches=2"],
}
# A store that is written over before the tenth update, and learnt from before and after.
STORE = ["agent.batch_size=8", "replay.capacity=256", "replay.learning_starts=64", "replay.samples_per_insert=1"]
REPLAY_AGENTS = {
    "sac": ["agent=sac", *STORE],
    "dqn": ["agent=dqn", *STORE, "replay=prioritised"],
}
GRU = ["network.core=gru", "network.core_size=8"]
DEVICES = {"anakin": ["mesh.learner=2"], "sebulba": ["mesh.actor=2", "mesh.learner=2"]}


def make(overrides):
    return build(load_config([*SMALL, *overrides])).runner


def train(runner, state, stop):
    """Trains to `stop` updates; returns the metrics by update and the state there, as arrays."""
    metrics = {}
    reports = runner.run(state, lambda updates: Due(min(updates + 1, stop), state=updates + 1 == stop))
    for report in reports:
        metrics[report.updates] = (report.metrics, report.episodes, report.env_steps)
        if report.state is not None:
            arrays = to_arrays(report.state)
            reports.close()
            return metrics, arrays
    raise AssertionError("no state was reported")


def assert_same(first, second):
    assert list(first) == list(second)
    for name in first:
        np.testing.assert_array_equal(first[name], second[name], err_msg=name)


CASES = [(runner, agent, []) for runner in RUNNERS for agent in AGENTS]
CASES += [("anakin", "sac", []), ("anakin", "dqn", []), ("fixed lag 1", "dqn", [])]
CASES += [("anakin", "ppo", GRU), ("fixed lag 1", "impala", GRU), ("lockstep", "pqn", GRU)]


@pytest.mark.parametrize(("runner", "agent", "core"), CASES)
def test_B27_20_updates_equal_10_and_10(runner, agent, core):
    overrides = [*RUNNERS[runner], *(AGENTS | REPLAY_AGENTS)[agent], *core]
    whole = make(overrides)
    metrics, end = train(whole, whole.init(), 20)
    first = make(overrides)
    first_metrics, middle = train(first, first.init(), 10)
    second = make(overrides)
    second_metrics, again = train(second, second.restore(middle), 20)
    assert first_metrics | second_metrics == metrics
    assert_same(end, again)


@pytest.mark.parametrize("runner", ["anakin", "sebulba"])
def test_B27_20_updates_equal_10_and_10_on_several_devices(runner):
    overrides = [f"runner={runner}", *AGENTS["ppo"], *DEVICES[runner]]
    whole, first, second = (make(overrides) for _ in range(3))
    metrics, end = train(whole, whole.init(), 20)
    _, middle = train(first, first.init(), 10)
    second_metrics, again = train(second, second.restore(middle), 20)
    assert second_metrics == {updates: metrics[updates] for updates in range(11, 21)}
    assert_same(end, again)


def test_a_state_that_lacks_something_is_noticed():
    """The comparison above rejects a run that forgets its actors."""
    runner = make([*RUNNERS["fixed lag 1"], *AGENTS["ppo"]])
    _, middle = train(runner, runner.init(), 10)
    second = make([*RUNNERS["fixed lag 1"], *AGENTS["ppo"]])
    forgetful = second.restore(middle)._replace(actors=(), waiting=())
    _, end = train(second, forgetful, 12)
    third = make([*RUNNERS["fixed lag 1"], *AGENTS["ppo"]])
    _, right = train(third, third.restore(middle), 12)
    with pytest.raises(AssertionError):
        assert_same(end, right)


def test_lag_unrolls_wait_at_an_update():
    runner = make([*RUNNERS["fixed lag 2"], *AGENTS["ppo"]])
    _, arrays = train(runner, runner.init(), 5)
    waiting = subtree(arrays, "waiting")
    assert [children(subtree(waiting, actor)) for actor in children(waiting)] == [["0", "1"]] * 2
    assert [int(arrays[f"actors/{actor}/next_unroll"]) for actor in range(2)] == [7, 7]


@pytest.mark.parametrize(
    ("before", "after"), [("mesh.learner=2", "mesh.learner=1"), ("mesh.learner=1", "mesh.learner=4")]
)
def test_D01_a_run_goes_on_with_other_devices(before, after):
    first = make([*RUNNERS["anakin"], *AGENTS["ppo"], before])
    _, arrays = train(first, first.init(), 3)
    second = make([*RUNNERS["anakin"], *AGENTS["ppo"], after])
    state = second.restore(arrays)
    assert_same(arrays, to_arrays(state))
    assert list(train(second, state, 5)[0]) == [4, 5]


def test_with_other_actors_episodes_begin_anew():
    first = make([*RUNNERS["fixed lag 1"], *AGENTS["ppo"]])
    _, arrays = train(first, first.init(), 3)
    second = make([*RUNNERS["fixed lag 1"], *AGENTS["ppo"], "runner.threads_per_device=4"])
    with pytest.warns(UserWarning, match="had 2 actors and has 4 now"):
        state = second.restore(arrays)
    assert state.actors == state.waiting == ()
    assert_same(subtree(arrays, "device"), to_arrays(state.device))
    assert list(train(second, state, 5)[0]) == [4, 5]


def test_B05_mode_free_goes_on_with_every_unroll_once():
    config = dict(config=load_config(["runner=sebulba", "runner.mode=free", "runner.queue_size=3"]).runner.build())
    runner = make_sebulba(Factory(2), threads=2, envs_per_actor=2, updates=12, **config)
    _, arrays = train(runner, runner.init(), 6)
    waiting = subtree(arrays, "waiting")
    for actor in range(2):
        unrolls = subtree(waiting, actor)
        indices = [int(unrolls[f"{name}/index"]) for name in children(unrolls)]
        assert indices == list(range(6, int(arrays[f"actors/{actor}/next_unroll"])))
    again = make_sebulba(Factory(2), threads=2, envs_per_actor=2, updates=12, **config)
    assert run_all(again, state=again.restore(arrays), due=lambda updates: Due(FAR))[-1].updates == 12


def test_B27_host_environments_start_new_episodes_with_other_seeds():
    first, second = Factory(2), Factory(2)
    runner = make_sebulba(first, envs_per_actor=2, updates=12)
    _, arrays = train(runner, runner.init(), 6)
    runner = make_sebulba(second, envs_per_actor=2, updates=12)
    run_all(runner, state=runner.restore(arrays))
    assert second.envs[0].seeds.shape == first.envs[0].seeds.shape
    assert not set(second.envs[0].seeds) & set(first.envs[0].seeds)


def test_the_arrays_of_another_agent_are_refused():
    runner = make([*RUNNERS["anakin"], *AGENTS["ppo"]])
    arrays = to_arrays(jax.device_get(runner.init()))
    with pytest.raises(ValueError, match="the saved state is of another structure"):
        make([*RUNNERS["anakin"], *AGENTS["ppo"], "network.hidden_sizes=[8,8]"]).restore(arrays)


@pytest.mark.parametrize(("agent", "before", "after"), [("sac", 1, 2), ("dqn", 4, 2)])
def test_D01_a_store_is_spread_over_another_number_of_devices(agent, before, after):
    """Nothing is lost: every device samples of its environments what the store held, with the same priorities."""
    overrides = ["runner=anakin", *REPLAY_AGENTS[agent]]
    first, second = (make([*overrides, f"mesh.learner={count}"]) for count in (before, after))
    _, saved = train(first, first.init(), 10)
    restored = second.restore(saved)
    again = to_arrays(restored.device.replay)
    stored = subtree(saved, "device", "replay")
    for name in (name for name in again if name.startswith("ring/steps")):
        np.testing.assert_array_equal(again[name], stored[name], err_msg=name)  # environments are the first axis
    assert starts_of(first.replay, stored, before) == starts_of(second.replay, again, after)
    metrics, _ = train(second, restored, 20)
    assert list(metrics) == list(range(11, 21))
    assert all(np.isfinite(value) for values, *_ in metrics.values() for value in values.values())


def starts_of(replay, arrays, num_devices):
    """`{(row, environment): weight}` of every start that may be sampled."""
    num_envs = 8 // num_devices
    weights = {}
    for device in range(num_devices):
        shard = {name: np.split(array, num_devices)[device] for name, array in arrays.items()}
        if "starts" in shard:
            counts = shard["starts_before"].reshape(-1).astype(np.int64)
            order = (int(shard["ring/head"][0]) * num_envs + np.arange(counts.size)) % counts.size
            readable = order[:-num_envs] if replay.spec.sequence_length == 2 else order
            after = np.append(counts[readable][1:], shard["starts"])
            leaves = np.zeros(counts.size)
            leaves[readable] = after - counts[readable]
        else:
            leaves = shard["tree/sums/0"]
        for position in np.flatnonzero(leaves):
            row, column = divmod(int(position), num_envs)
            weights[row, device * num_envs + column] = float(leaves[position])
    return weights
