"""The arithmetic of predictions, by hand, and that it needs no JAX."""

import subprocess
import sys

import pytest

from podracer.calibration.model import ActingCost, LearningCost, ProgramCost, predict_anakin, predict_sebulba

# 1000 transitions in 50 ms, of which 30 ms stepping; 60 ms of processor time.
ACTING = ActingCost(1000.0, 0.050, environment_seconds=0.030, acting_seconds=0.020, processor_seconds=0.060)


def test_actors_bound_a_run_whose_learner_is_quick():
    # actors 50 ms, learner 20 ms, processors (60 + 20) / 2 = 40 ms: 1000 / 0.05
    prediction = predict_sebulba(ACTING, LearningCost(0.020, 0.020), 2.0, lockstep=False)
    assert prediction.steps_per_second == pytest.approx(20_000)
    assert prediction.steps_per_processor_second == pytest.approx(1000 / 0.08)
    assert (prediction.limit, prediction.bottleneck) == ("actors", "environment")
    expected = {"environment": 0.03, "acting": 0.02, "learning": 0.02, "actors": 0.05, "learner": 0.02}
    assert prediction.seconds == pytest.approx({**expected, "processors": 0.04})


def test_acting_is_the_bottleneck_where_actors_step_less_than_they_act():
    acting = ActingCost(1000.0, 0.050, environment_seconds=0.020, acting_seconds=0.030, processor_seconds=0.060)
    assert predict_sebulba(acting, LearningCost(0.020, 0.020), 2.0, lockstep=False).bottleneck == "acting"


def test_the_learner_bounds_a_run_whose_actors_are_quick():
    # learner 80 ms, processors (60 + 90) / 2 = 75 ms: 1000 / 0.08
    prediction = predict_sebulba(ACTING, LearningCost(0.080, 0.090), 2.0, lockstep=False)
    assert prediction.steps_per_second == pytest.approx(12_500)
    assert (prediction.limit, prediction.bottleneck) == ("learner", "learning")


@pytest.mark.parametrize(
    ("learner_processor_seconds", "bottleneck"),
    # Of the actors' 60 ms, three fifths are the environment's: 36 ms, more than 20 and less than 40.
    [(0.020, "environment"), (0.040, "learning")],
)
def test_processors_bound_a_run_that_shares_one(learner_processor_seconds, bottleneck):
    learning = LearningCost(0.020, learner_processor_seconds)
    prediction = predict_sebulba(ACTING, learning, 1.0, lockstep=False)
    assert prediction.steps_per_second == pytest.approx(1000 / (0.060 + learner_processor_seconds))
    assert (prediction.limit, prediction.bottleneck) == ("processors", bottleneck)


def test_actors_and_learner_take_turns_in_lockstep():
    # 50 + 20 ms, on so many processors that they bound nothing
    prediction = predict_sebulba(ACTING, LearningCost(0.020, 0.020), 8.0, lockstep=True)
    assert prediction.steps_per_second == pytest.approx(1000 / 0.07)
    assert (prediction.limit, prediction.bottleneck) == ("lockstep", "environment")


def test_the_parts_of_a_program_add_up_to_it():
    # 10 ms, of which 2 step and 3 act: 5 are left to learn
    prediction = predict_anakin(ProgramCost(500.0, 0.010, 0.002, 0.003, processor_seconds=0.020))
    assert prediction.steps_per_second == pytest.approx(50_000)
    assert prediction.steps_per_processor_second == pytest.approx(25_000)
    assert prediction.seconds == pytest.approx({"environment": 0.002, "acting": 0.003, "learning": 0.005})
    assert (prediction.limit, prediction.bottleneck) == ("program", "learning")


def test_parts_that_take_longer_alone_than_within_the_program_are_scaled_to_it():
    prediction = predict_anakin(ProgramCost(500.0, 0.010, 0.012, 0.008, processor_seconds=0.020))
    assert prediction.seconds == pytest.approx({"environment": 0.006, "acting": 0.004, "learning": 0.0})
    assert prediction.bottleneck == "environment"


def test_predictions_need_no_jax():
    code = "import sys, podracer.calibration.model, podracer.calibration.candidates; assert 'jax' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
