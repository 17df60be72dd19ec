"""Times the two sides of Sebulba apart from each other, and Anakin's program, each as a run has it."""

import dataclasses
import functools
import hashlib
import sys
import threading
import time

from podracer.build import Run
from podracer.calibration.model import ActingCost, LearningCost, ProgramCost
from podracer.calibration.parts import acting_seconds, environment_seconds
from podracer.calibration.steady import steady
from podracer.runner import Due, Report
from podracer.runners.activities import Activities
from podracer.runners.learner import Learner
from podracer.runners.parking import Parking
from podracer.runners.sebulba import Sebulba
from podracer.runners.transport import Unroll
from podracer.runners.workers import Reports, Stopped, Workers, call_in_worker


def time_actors(runner: Sebulba, seconds: float) -> tuple[ActingCost, list[Unroll]]:
    """Times all actors for about `seconds`, beside a learner that takes every unroll at once and learns nothing.

    Returns:
      What it costs, and an unroll of every actor.
    """
    if runner.lag is not None:
        # Without a learner there are no versions to wait for.
        runner = dataclasses.replace(runner, config=dataclasses.replace(runner.config, mode="free", refresh="unroll"))
    return call_in_worker("calibration", functools.partial(_take_unrolls, runner, seconds))


def _take_unrolls(runner: Sebulba, seconds: float, workers: Workers) -> tuple[ActingCost, list[Unroll]]:
    state = runner.init()
    store = runner.parameter_store(workers, state)
    store.publish(0, runner.packed_snapshot(runner.agent, state.device))
    parking = Parking(workers, len(runner.actor_devices))
    queues = runner.start_actors(workers, store, parking, Activities(runner.faults), state)
    first = [queue.get() for queue in queues]  # compiles
    clock, rounds, env_steps, env_seconds = Clock(), 0, 0, 0.0
    while not rounds or clock.seconds < seconds:
        unrolls = [queue.get() for queue in queues]
        rounds += 1
        env_steps += sum(unroll.env_steps for unroll in unrolls)
        env_seconds += sum(unroll.seconds["env_seconds"] for unroll in unrolls) / len(unrolls)
    elapsed, processor_seconds = clock.seconds, clock.processor_seconds
    return (
        ActingCost(
            env_steps=env_steps / rounds,
            seconds=elapsed / rounds,
            environment_seconds=min(env_seconds, elapsed) / rounds,
            acting_seconds=max(0.0, elapsed - env_seconds) / rounds,
            processor_seconds=processor_seconds / rounds,
        ),
        first,
    )


class _SameUnroll:
    """Stands for the queue of an actor that never keeps the learner waiting."""

    def __init__(self, workers: Workers, unroll: Unroll):
        self._workers, self._unroll = workers, unroll

    def get(self) -> Unroll:
        if self._workers.stopping:
            raise Stopped
        return self._unroll


def time_learner(runner: Sebulba, unrolls: list[Unroll], seconds: float) -> LearningCost:
    """Times the learner for about `seconds`, with the same unroll of every actor again and again."""
    with Workers() as workers:
        reports: Reports[Report] = Reports(workers)
        state = runner.init()
        learner = Learner(
            runner,
            workers,
            runner.parameter_store(workers, state),
            Parking(workers, len(unrolls)),
            Activities(runner.faults),
            [_SameUnroll(workers, unroll) for unroll in unrolls],
            state,
            lambda updates: Due(sys.maxsize),
            reports,
        )
        del state  # it is donated
        workers.start("learner", learner.run)
        clock = started = None
        for report in reports:
            if clock is None:  # the first update compiles
                clock, started = Clock(), report.updates
                continue
            updates = report.updates - started
            if clock.seconds >= seconds:
                break
        return LearningCost(clock.seconds / updates, clock.processor_seconds / updates)


def time_program(run: Run, seconds: float) -> ProgramCost:
    """Times Anakin's program for about `seconds`, and what it contains alone on one device."""
    plan = run.plan
    with steady(run, seconds / 4) as training:
        piece = training.train(seconds)
    # Emulated devices share the processors.
    shared = max(1.0, plan.learners / plan.topology.cores_per_host) if plan.topology.platform == "cpu" else 1.0
    return ProgramCost(
        env_steps=piece.env_steps / piece.updates,
        seconds=piece.seconds / piece.updates,
        environment_seconds=shared * environment_seconds(run, seconds / 4),
        acting_seconds=shared * acting_seconds(run, seconds / 4),
        processor_seconds=piece.cpu_seconds / piece.updates,
    )


def available_processors(cores: int, seconds: float) -> float:
    """Measures how many of the cores this process gets: not all of them where others work, too."""
    stop, data = threading.Event(), bytes(1 << 16)

    def work():
        while not stop.is_set():
            hashlib.sha256(data).digest()  # without holding the interpreter's lock

    threads = [threading.Thread(target=work, daemon=True) for _ in range(cores)]
    clock = Clock()
    for thread in threads:
        thread.start()
    time.sleep(seconds)
    stop.set()
    for thread in threads:
        thread.join()
    return min(float(cores), max(1e-3, clock.processor_seconds / clock.seconds))


class Clock:
    """Wall seconds, and processor seconds of this process, since it was made."""

    def __init__(self):
        self._started, self._processor_started = time.perf_counter(), time.process_time()

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._started

    @property
    def processor_seconds(self) -> float:
        return time.process_time() - self._processor_started
