import _thread
import threading
import time
import traceback

import jax
import jax.numpy as jnp
import pytest

from podracer.runners import workers as module
from podracer.runners.workers import Channel, Reports, Stopped, WorkerHung, Workers, call_in_worker


class Broken(Exception):
    pass


def fails_deep_inside():
    raise Broken("original")


def wait_for_end(workers):
    Channel(workers, 1).get()


def live_workers():
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("w-")]


def test_B01_the_first_exception_ends_all_with_its_own_traceback():
    def late(workers):
        try:
            wait_for_end(workers)
        except Stopped:
            raise ValueError("a consequence") from None

    started = time.monotonic()
    with pytest.raises(Broken, match="original") as caught, Workers() as workers:
        reports = Reports(workers)
        workers.start("w-late", lambda: late(workers))
        workers.start("w-waits", lambda: wait_for_end(workers))
        workers.start("w-fails", fails_deep_inside)
        list(reports)
    assert time.monotonic() - started < 3
    text = "".join(traceback.format_exception(caught.value))
    assert text.count("Traceback") == 1 and text.count("in fails_deep_inside") == 1
    assert live_workers() == []


def test_B01_a_failure_after_the_last_item_is_raised():
    with pytest.raises(Broken), Workers() as workers:
        reports = Reports(workers)

        def closes_badly():
            try:
                wait_for_end(workers)
            finally:
                fails_deep_inside()

        workers.start("w-closes", closes_badly)
        workers.start("w-ends", reports.end)
        list(reports)


def test_what_was_sent_before_a_failure_is_handed_out():
    with pytest.raises(Broken), Workers() as workers:
        reports = Reports(workers)

        def work():
            reports.send("last metrics")
            fails_deep_inside()

        workers.start("w-work", work)
        workers._threads[0].join()
        seen = []
        for item in reports:
            seen.append(item)
    assert seen == ["last metrics"]


def test_every_wait_ends_with_the_run():
    condition = threading.Condition()

    def waits(workers):
        with condition:
            workers.wait(condition, lambda: False)

    def puts(workers):
        full = Channel(workers, 1)
        full.put(0)
        full.put(1)

    def pauses(workers):
        Reports(workers).send(0, pause=True)

    with Workers() as workers:
        for number, target in enumerate((waits, puts, pauses, wait_for_end)):
            workers.start(f"w-{number}", lambda target=target: target(workers))
        time.sleep(0.2)
        assert len(live_workers()) == 4
        started = time.monotonic()
        workers.close()
        assert time.monotonic() - started < 1
    assert live_workers() == []


def test_a_pause_lasts_until_the_item_is_handled():
    events = []
    with Workers() as workers:
        reports = Reports(workers)

        def work():
            reports.send(1)
            reports.send(2, pause=True)
            events.append("resumed")
            reports.send(3)
            reports.end()

        workers.start("w-work", work)
        for item in reports:
            time.sleep(0.05)
            events.append(item)
    assert events == [1, 2, "resumed", 3]


@pytest.fixture
def short_join(monkeypatch):
    monkeypatch.setattr(module, "_JOIN_SECONDS", 0.3)
    released = threading.Event()
    yield released
    released.set()


def test_a_thread_that_hangs_is_named(short_join):
    with pytest.raises(WorkerHung, match="w-hangs") as caught, Workers() as workers:
        workers.start("w-hangs", short_join.wait)
        workers.start("w-stops", lambda: wait_for_end(workers))
    assert "w-stops" not in str(caught.value)


def test_a_failure_is_told_before_the_thread_that_hangs(short_join):
    with pytest.raises(Broken) as caught, Workers() as workers:
        workers.start("w-hangs", short_join.wait)
        workers.start("w-fails", fails_deep_inside)
        list(Reports(workers))
    assert any("w-hangs" in note for note in caught.value.__notes__)


def test_an_interrupt_ends_everything():
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt), Workers() as workers:
        workers.start("w-waits", lambda: wait_for_end(workers))
        workers.start("w-interrupts", lambda: time.sleep(0.1) or _thread.interrupt_main())
        list(Reports(workers))
    assert time.monotonic() - started < 2
    assert live_workers() == []


def test_an_interrupt_is_told_before_the_thread_that_hangs(short_join):
    with pytest.raises(KeyboardInterrupt) as caught, Workers() as workers:
        workers.start("w-hangs", short_join.wait)
        workers.start("w-interrupts", _thread.interrupt_main)
        list(Reports(workers))
    assert "w-hangs" in caught.value.__notes__[0]


def test_call_in_worker():
    assert call_in_worker("w-call", lambda workers: (threading.current_thread().name, workers.stopping)) == (
        "w-call",
        False,
    )
    with pytest.raises(Broken):
        call_in_worker("w-call", lambda workers: fails_deep_inside())

    def loops(workers):
        _thread.interrupt_main()
        while not workers.stopping:
            time.sleep(0.01)

    with pytest.raises(KeyboardInterrupt):
        call_in_worker("w-call", loops)
    assert live_workers() == []


def test_a_device_out_of_memory_is_explained():
    def work():
        jax.block_until_ready(jnp.zeros((2**46,), jnp.int8))

    with pytest.raises(Exception, match="RESOURCE_EXHAUSTED") as raised, Workers() as workers:
        workers.start("learner", work)
        while True:
            workers.check()
            time.sleep(0.01)
    assert any("agent.unroll_length" in note for note in raised.value.__notes__)


def test_B04_a_worker_that_stops_itself_is_not_waited_for():
    def work(workers):
        raise Stopped

    started = time.monotonic()
    with pytest.raises(Stopped):
        call_in_worker("evaluator", work)
    assert time.monotonic() - started < 5
