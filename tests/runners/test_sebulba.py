import dataclasses
import time

import jax
import numpy as np
import pytest

from podracer.runner import Due
from podracer.runners.sebulba import SebulbaConfig
from tests.runners.doubles import FAR, CountingEnv, Factory, RecordingAgent, make_sebulba, run_all, run_threads

MODES = {
    "lockstep": SebulbaConfig(mode="lockstep", updates_per_report=1),
    "fixed_lag": SebulbaConfig(updates_per_report=1),
    "fixed_lag_2": SebulbaConfig(lag=2, updates_per_report=1),
    "free_unroll": SebulbaConfig(mode="free", updates_per_report=1),
    "free_step": SebulbaConfig(mode="free", refresh="step", updates_per_report=1),
}


def end_at_each(updates):
    """Ends every chunk after one update and asks for the state at the end of the budget."""
    return Due(FAR, state=True)


@pytest.mark.parametrize("mode", ["lockstep", "fixed_lag", "free_step"])
def test_B02_stopping_ends_every_thread_and_closes_every_env_once(mode):
    config = dataclasses.replace(MODES[mode], queue_size=1)
    for stop_after in (1, 2, 3, 17):
        factory = Factory(1)
        runner = make_sebulba(factory, config=config, threads=4, envs_per_actor=1, updates=1000)
        reports = runner.run(runner.init(), lambda updates: Due(FAR))
        for _ in range(stop_after):
            next(reports)
        started = time.monotonic()
        reports.close()
        assert time.monotonic() - started < 5
        assert run_threads() == []
        steps = [env.steps for env in factory.envs.values()]
        time.sleep(0.02)
        assert [env.steps for env in factory.envs.values()] == steps
        assert [env.closes for env in factory.envs.values()] == [1] * 4
        assert not any(env.steps_after_close for env in factory.envs.values())


@pytest.mark.parametrize("repeat", range(5))
def test_B02_the_end_of_the_budget_ends_every_thread(repeat):
    factory = Factory(1)
    mode = list(MODES)[repeat]
    reports = run_all(make_sebulba(factory, config=MODES[mode], threads=4, envs_per_actor=1, updates=3))
    assert reports[-1].updates == 3
    assert run_threads() == []
    assert [(env.closes, env.steps) for env in factory.envs.values()] == [(1, 3 * 4)] * 4


def test_B06_env_steps_are_the_transitions_that_the_environments_counted():
    agent = RecordingAgent(unroll_length=8)
    factory = Factory(4)
    reports = run_all(make_sebulba(factory, agent, threads=2, envs_per_actor=4, updates=5, config=MODES["fixed_lag"]))
    counted = sum(env.transitions for env in factory.envs.values())
    # The rows of an actor end their episodes after 3, 4, 5 and 6 steps, and each reset takes one of a row's 40 slots:
    # 40 // 4 = 10, 40 // 5 = 8, 40 // 6 = 6 and 40 // 7 = 5 resets; 2 actors x (160 - 29) = 262.
    assert reports[-1].env_steps == counted == 262
    assert sum(report.metrics["valid"] for report in reports) == counted
    assert [env.steps for env in factory.envs.values()] == [40, 40]
    # As many episodes; those in hand after 6 x 6 + 4 and 5 x 7 + 5 slots have not ended.
    episodes = [report.episodes for report in reports]
    assert sum(chunk.count for chunk in episodes) == 2 * (10 + 8 + 6 + 5)
    assert sum(chunk.length_sum for chunk in episodes) == 2 * (10 * 3 + 8 * 4 + 6 * 5 + 5 * 6)
    assert sum(chunk.return_sum for chunk in episodes) == 2 * (10 * 3 + 8 * 4 + 6 * 5 + 5 * 6)
    assert (episodes[-1].return_min, episodes[-1].return_max) == (3.0, 6.0)


def test_B14_env_steps_pass_32_bits():
    runner = make_sebulba(Factory(4), updates=3, config=MODES["lockstep"])
    state = runner.init()._replace(env_steps=2**31 - 8)
    counts = [report.env_steps for report in run_all(runner, state=state)]
    assert all(type(count) is int for count in counts)
    assert counts == sorted(set(counts)) and counts[0] < 2**31 + 8 < counts[-1]


def test_B12_actors_have_seeds_and_actions_of_their_own():
    def seeds_and_actions(seed):
        factory = Factory(4)
        run_all(make_sebulba(factory, threads=2, actors=(0, 1), updates=4, seed=seed, config=MODES["fixed_lag"]))
        envs = [factory.envs[shard] for shard in range(4)]
        return np.concatenate([env.seeds for env in envs]), np.concatenate([env.actions for env in envs], axis=1)

    seeds, actions = seeds_and_actions(0)
    assert len(set(seeds.tolist())) == 16
    assert len({column.tobytes() for column in actions.T}) == 16
    again, same_actions = seeds_and_actions(0)
    np.testing.assert_array_equal(seeds, again)
    np.testing.assert_array_equal(actions, same_actions)
    neighbour, other_actions = seeds_and_actions(1)
    assert not set(seeds.tolist()) & set(neighbour.tolist())
    assert (actions != other_actions).any()


@pytest.mark.parametrize(("mode", "lag"), [("lockstep", 0), ("fixed_lag", 1), ("fixed_lag_2", 2)])
def test_unroll_n_acts_on_version_n_minus_lag(mode, lag):
    reports = run_all(make_sebulba(Factory(2), threads=2, envs_per_actor=2, updates=6, config=MODES[mode]))
    # Versions as the trajectories recorded them, and as the actors' host says.
    assert [report.metrics["version"] for report in reports] == [max(0, n - lag) for n in range(6)]
    assert [report.metrics["policy_lag_mean"] for report in reports] == [min(n, lag) for n in range(6)]
    assert [report.metrics["policy_lag_max"] for report in reports] == [min(n, lag) for n in range(6)]


@pytest.mark.parametrize("mode", ["free_unroll", "free_step"])
def test_the_lag_of_mode_free_is_measured_and_bounded(mode):
    config = dataclasses.replace(MODES[mode], queue_size=2)
    factory = Factory(2, step_seconds=lambda shard: 0.002 * shard)
    reports = run_all(make_sebulba(factory, threads=2, envs_per_actor=2, updates=40, config=config))
    for number, report in enumerate(reports):
        assert report.metrics["policy_lag_mean"] == pytest.approx(number - report.metrics["version"], abs=1e-4)
        # Unrolls that wait, the one in hand, and two updates under way.
        assert report.metrics["policy_lag_max"] <= 2 + 1 + 2
    assert any(report.metrics["policy_lag_mean"] > 0 for report in reports)


@pytest.mark.parametrize("mode", ["lockstep", "fixed_lag", "fixed_lag_2"])
def test_B26_the_same_seed_gives_the_same_run_bit_for_bit(mode):
    def run():
        # The actors' relative speed changes from run to run.
        factory = Factory(2, step_seconds=lambda shard: 0.001 * np.random.default_rng().random())
        runner = make_sebulba(factory, actors=(0, 1), learners=(2, 3), envs_per_actor=2, updates=6, config=MODES[mode])
        reports = run_all(runner)
        return jax.device_get(reports[-1].state.device.learner), [report.metrics for report in reports]

    (params, metrics), (same_params, same_metrics) = run(), run()
    jax.tree.map(np.testing.assert_array_equal, params, same_params)
    assert metrics == same_metrics


class Reused(CountingEnv):
    """Fills the same arrays again and again."""

    def __init__(self, num_envs):
        super().__init__(num_envs)
        self._memory = None

    def reset(self, seeds):
        return self._reuse(super().reset(seeds))

    def step(self, action):
        return self._reuse(super().step(action))

    def _reuse(self, timestep):
        if self._memory is None:
            # XLA adopts memory that is aligned to 64 bytes instead of copying it.
            self._memory = jax.tree.map(aligned_copy, timestep)
        jax.tree.map(np.copyto, self._memory, timestep)
        return self._memory


def aligned_copy(array):
    raw = np.empty(array.nbytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    view = raw[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    view[...] = array
    return view


@pytest.mark.parametrize("actor", [0, 1])
def test_B22_an_environment_that_reuses_its_arrays_changes_nothing_that_was_recorded(actor):
    def metrics(make):
        runner = make_sebulba(Factory(4, make), actors=(actor,), updates=8, config=MODES["fixed_lag_2"])
        return [(report.metrics, report.env_steps, report.episodes) for report in run_all(runner)]

    assert metrics(Reused) == metrics(CountingEnv)


@pytest.mark.parametrize("learners", [(2, 3), (1,)])
def test_B23_nothing_of_a_run_lies_on_another_device(learners):
    before = {id(array) for array in jax.live_arrays()}
    devices = {}

    class Watching(CountingEnv):
        def step(self, action):
            if self.steps == 20:
                made = [array for array in jax.live_arrays() if id(array) not in before]
                for array in made:
                    for device in array.devices():
                        devices.setdefault(device.id, []).append(array.shape)
            return super().step(action)

    runner = make_sebulba(Factory(4, Watching), actors=(1,), learners=learners, updates=8, config=MODES["fixed_lag"])
    reports = run_all(runner, lambda updates: Due(updates + 3, snapshot=True))
    assert set(devices) == {1, *learners}
    assert reports[-1].snapshot.version.devices() == {jax.devices()[i] for i in learners}


def test_B23_parameters_randomness_and_rollouts_of_an_actor_lie_on_its_device():
    seen = []

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Spy(RecordingAgent):
        pass

    runner = make_sebulba(Factory(4), Spy(), actors=(1,), learners=(2, 3), updates=2, config=MODES["lockstep"])
    from podracer.runners import actor

    build = actor.ActorPrograms.build

    def spying(*args):
        programs = build(*args)

        def act(*arguments):
            seen.append(
                [{d.id for d in leaf.devices()} for leaf in jax.tree.leaves(arguments) if isinstance(leaf, jax.Array)]
            )
            return programs.act(*arguments)

        return dataclasses.replace(programs, act=act)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(actor.ActorPrograms, "build", staticmethod(spying))
        run_all(runner)
    assert len(seen) == 2 * 5
    # The hyper-parameter, three arrays of the snapshot's, the memory, the buffer, the key.
    assert all(len(call) > 8 and all(device == {1} for device in call) for call in seen)


def test_B21_live_arrays_do_not_grow():
    counts = []

    def due(updates):
        counts.append(len(jax.live_arrays()))
        return Due(FAR)

    config = SebulbaConfig(mode="free", updates_per_report=20)
    run_all(make_sebulba(Factory(1), threads=2, envs_per_actor=1, updates=300, config=config), due)
    assert len(counts) == 15
    # Unrolls on their way come and go, so counts jump; a leak would lift the least of them, too.
    assert min(counts[10:]) <= max(counts[1:6])


def test_a_run_goes_on_from_a_reported_state():
    whole = run_all(make_sebulba(Factory(2), envs_per_actor=2, updates=6, config=MODES["lockstep"]))
    runner = make_sebulba(Factory(2), envs_per_actor=2, updates=6, config=MODES["lockstep"])
    reports = runner.run(runner.init(), lambda updates: Due(3, state=True) if updates < 3 else Due(FAR))
    state = next(report.state for report in reports if report.state is not None)
    reports.close()
    assert (state.updates, int(state.device.updates)) == (3, 3)
    rest = run_all(runner, state=state)
    assert [report.updates for report in rest] == [4, 5, 6]
    assert [report.metrics["progress"] for report in rest] == [report.metrics["progress"] for report in whole[3:]]
    assert [report.metrics["version"] for report in rest] == [3, 4, 5]
    assert rest[-1].env_steps - state.env_steps == state.env_steps  # the same environments, from their start


@pytest.mark.parametrize(
    ("setting", "value"), [("lag", -1), ("queue_size", 0), ("threads_per_device", 0), ("updates_per_report", 0)]
)
def test_settings_that_are_too_small_are_refused(setting, value):
    with pytest.raises(ValueError, match=f"runner.{setting}={value} is too small; use at least {value + 1}"):
        SebulbaConfig(**{setting: value})
