import dataclasses
import io
import json

from rich.console import Console

from podracer.parallel.mesh import MeshConfig, plan
from podracer.parallel.plan_table import rows, to_json, to_table
from podracer.parallel.topologies import named_topology


def make_plan(runner, topology, **mesh):
    return plan(
        runner=runner,
        topology=named_topology(topology),
        mesh=MeshConfig(**mesh),
        num_envs=3072,
        unroll_length=20,
        total_env_steps=(1e8).__int__(),
        seed=7,
        num_minibatches=4,
    )


def test_rows_say_the_plan_in_words():
    result = make_plan("sebulba", "tpu-v3-32", actor=2, learner=4)
    held = {"learner device: learner state": 3 * 2**20, "actor device: parameters": 2**20}
    text = dict(rows(dataclasses.replace(result, memory=held)))
    assert text["machines"] == "tpu-v3-32: 4 hosts x 8 tpu devices, 96 cores a host"
    assert text["acts"] == "devices 0, 1 of every host, 8 in all"
    assert text["learns"] == "devices 2 to 5 of every host, 16 in all"
    assert text["idle"] == "devices 6, 7 of every host, 8 in all"
    assert text["actor threads"] == "8 in all, 1 an actor device, each with 48 threads for its environments"
    assert text["environments"] == "3,072 in all, 384 an actor"
    assert text["batch"] == "61,440 environment steps an update (3,072 environments x 20 steps)"
    # 61,440 / 16 learner devices, / 4 minibatches
    assert text["batch per device"] == "3,840 environment steps (192 environments), in 4 minibatches of 960"
    assert (text["updates"], text["total"]) == ("1,627", "99,962,880 environment steps")
    assert text["memory per learner device"] == "3.0 MiB of 16.0 GiB, temporaries not counted"
    assert text["  actor device: parameters"] == "1.0 MiB"


def test_the_table_shows_every_row():
    result = make_plan("anakin", "dgx-a100")
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(to_table(result))
    shown = console.export_text()
    assert "acts and learns" in shown and "devices 0 to 7" in shown
    assert all(name in shown for name, _ in rows(result))


def test_json_carries_every_field():
    result = make_plan("anakin", "tpu-v3-2048", learner=2)
    values = json.loads(json.dumps(to_json(result)))
    assert set(values) == {field.name for field in dataclasses.fields(result)}
    assert values["topology"]["hosts"] == 256
    assert values["learner_ids"] == [0, 1]
