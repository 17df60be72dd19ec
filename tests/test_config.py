"""Strict conversion, composition, and every file under `configs/`."""

import dataclasses
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
import yaml
from hydra import compose, initialize
from hydra.core.global_hydra import GlobalHydra
from omegaconf import open_dict

import podracer
from podracer import composition, config, locations
from podracer.config import config_from_mapping, config_to_mapping, load_config, read_config, save_config
from podracer.conversion import ConfigError, from_mapping
from podracer.importing import load_object
from podracer.reference import field_docs


@dataclass(frozen=True)
class Inner:
    width: int = 8


@dataclass(frozen=True)
class Schema:
    steps: int = 1
    rate: float = 0.1
    flag: bool = False
    name: str = ""
    mode: Literal["fast", "slow"] = "fast"
    limit: int | None = None
    sizes: tuple[int, ...] | None = None
    pair: tuple[int, float] = (1, 2.0)
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    inner: Inner = field(default_factory=Inner)


@pytest.fixture
def config_folder(tmp_path, monkeypatch):
    """A copy of `configs/` that a test may change, in use until its end."""
    folder = tmp_path / "configs"
    shutil.copytree(locations.config_folder(), folder)
    monkeypatch.setattr(locations, "config_folder", lambda: folder)
    composition.register.cache_clear()
    yield folder
    monkeypatch.undo()
    composition.register.cache_clear()
    composition.register()


@pytest.mark.parametrize(
    ("mapping", "name", "value"),
    [
        ({"steps": 1e6}, "steps", 1_000_000),
        ({"steps": 2.5e3}, "steps", 2500),
        ({"rate": 1}, "rate", 1.0),
        ({"limit": None}, "limit", None),
        ({"limit": 3.0}, "limit", 3),
        ({"sizes": [64, 6.4e1]}, "sizes", (64, 64)),
        ({"pair": [2, 3]}, "pair", (2, 3.0)),
        ({"mode": "slow"}, "mode", "slow"),
        ({"kwargs": {"a": {"b": 1}}}, "kwargs", {"a": {"b": 1}}),
        ({"inner": {"width": 1e1}}, "inner", Inner(10)),
        ({"name": "1E234"}, "name", "1E234"),
    ],
)
def test_C02_values_are_converted_to_the_types_of_the_fields(mapping, name, value):
    converted = getattr(from_mapping(Schema, mapping, "group"), name)
    assert converted == value
    assert type(converted) is type(value)


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ({"steps": 1.5}, r"group\.steps=1\.5 is not a whole number; use 1 or 2"),
        ({"steps": True}, r"group\.steps=True is not a whole number"),
        ({"steps": float("inf")}, r"group\.steps=inf is not a whole number"),
        ({"rate": float("nan")}, r"group\.rate=nan is not a number"),
        ({"rate": "3e-4"}, r"group\.rate='3e-4' is a text that looks like a number; write group\.rate=3e-4"),
        ({"limit": "3"}, r"group\.limit='3' is a text that looks like a number"),
        ({"flag": 1}, r"group\.flag=1 is neither true nor false"),
        ({"name": 1e234}, r"group\.name=1e\+234 is not a text.*quotes"),
        ({"mode": "fas"}, r"group\.mode=fas is none of fast, slow"),
        ({"sizes": 64}, r"group\.sizes=64 is not a list; write group\.sizes=\[64\]"),
        ({"sizes": [1.5]}, r"group\.sizes\[0\]=1\.5 is not a whole number"),
        ({"pair": [1]}, r"group\.pair=\[1\] has 1 elements where 2 are needed"),
        ({"kwargs": 3}, r"group\.kwargs=3 is not a mapping"),
        ({"inner": {"widht": 1}}, r"unknown key group\.inner\.widht; did you mean group\.inner\.width\?"),
        ({"stps": 1}, r"unknown key group\.stps; did you mean group\.steps\?"),
        (None, r"group is a group of settings"),
    ],
)
def test_C02_C03_refused_values_name_the_key_and_the_repair(mapping, message):
    with pytest.raises(ConfigError, match=message):
        from_mapping(Schema, mapping, "group")


@pytest.mark.parametrize("written", ["1e-5", "1.0e-05", "0.00001"])
def test_C01_small_floats_from_the_command_line_are_floats(written):
    assert load_config([f"agent.learning_rate={written}"]).agent.settings["learning_rate"] == 1e-5


def test_C01_small_floats_from_yaml_are_floats(config_folder):
    (config_folder / "agent" / "ppo.yaml").write_text("name: ppo\nlearning_rate: 3e-4\n")
    assert load_config().agent.settings["learning_rate"] == 3e-4


def test_C01_quoted_numbers_are_refused_and_quoted_texts_stay_texts():
    with pytest.raises(ConfigError, match=r"agent\.learning_rate=1e-5, without quotes"):
        load_config(["agent.learning_rate='1e-5'"])
    assert load_config(["env=gymnasium", "env.id='1E234'"]).env.id == "1E234"
    with pytest.raises(ConfigError, match=r"env\.id=.* quotes"):
        load_config(["env=gymnasium", "env.id=1E234"])


def test_C01_saved_configuration_is_plain_yaml_and_reads_back_equal(tmp_path):
    saved = load_config(
        ["agent.learning_rate=1e-5", "total_env_steps=1e6", "network.hidden_sizes=[32,16]", "env.id='1E234'",
         "env.kwargs.size=3", "topology=tpu-v3-32"]
    )  # fmt: skip
    save_config(saved, tmp_path / "config.yaml")
    plain = yaml.safe_load((tmp_path / "config.yaml").read_text())
    assert plain["agent"]["learning_rate"] == 1e-5 and type(plain["agent"]["learning_rate"]) is float
    assert plain["total_env_steps"] == 1_000_000 and type(plain["total_env_steps"]) is int
    assert plain["env"]["id"] == "1E234"
    assert plain["network"]["hidden_sizes"] == [32, 16]
    assert read_config(tmp_path / "config.yaml") == saved
    with pytest.raises(ConfigError, match="another run has this folder"):
        save_config(saved, tmp_path / "config.yaml")


def test_C02_budget_written_as_a_float_is_an_integer():
    assert load_config(["total_env_steps=2e7"]).total_env_steps == 20_000_000
    with pytest.raises(ConfigError, match=r"total_env_steps=1\.5 is not a whole number; use 1 or 2"):
        load_config(["total_env_steps=1.5"])


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("lrr=1", r"unknown key lrr; did you mean agent\.learning_rate\?"),
        ("+lrr=1", r"unknown key lrr; did you mean agent\.learning_rate\?"),
        ("++lrr=1", r"unknown key lrr; did you mean agent\.learning_rate\?"),
        ("algo.lrr=1", r"unknown key algo\.lrr; did you mean agent\.learning_rate\?"),
        ("agent.learning_rte=1", r"did you mean agent\.learning_rate\?"),
        ("+agent.gamma=1", r"did you mean agent\.discount_factor\?"),
        ("agnt=ppo", r"unknown key agnt; did you mean agent\?"),
        ("agent=ppp", r"agent=ppp does not exist; did you mean agent=ppo\?"),
        ("env=cartpole", r"did you mean env=gymnax/cartpole or env=envpool/cartpole\?"),
        ("agent=1", r"agent=1 is no choice; there are custom, .*ppo, pqn"),
        ("~agent", r"agent is missing; choose agent="),
        ("runner.mode=free", r"runner\.mode is no setting of the chosen runner; those with it: runner=sebulba"),
        ("topology.host=2", r"did you mean topology\.hosts\?"),
        ("topology=tpu-v3-2047", r"use tpu-v3-2040 or tpu-v3-2048"),
        ("agent.learning_rate=${agent.gama}", r"agent\.learning_rate=\$\{agent\.gama\} refers to nothing"),
        ("seed=1,2", r"--multirun"),
        ("seed=-1", r"seed=-1 is out of range; use 0 to 4294967295"),
        ("total_env_steps=0", r"total_env_steps=0 is not positive"),
        ("agent=custom", r"agent\.make is missing"),
    ],
)
def test_C03_mistyped_overrides_are_refused_with_the_nearest_name(override, message):
    with pytest.raises(ConfigError, match=message):
        load_config([override])


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("agent/ppo.yaml", "name: ppo\nlearning_rte: 1\n", r"ppo\.yaml.*agent\.learning_rte.*agent\.learning_rate"),
        ("agent/ppo.yaml", "name: pppo\n", r"ppo\.yaml.*agent\.name=pppo is none of ppo"),
        ("agent/ppo.yaml", "name: ppo\nlearning_rate: ${agent.gama}\n", r"agent\.gama.* refers to nothing"),
        ("env/catch.yaml", "suite: catch\nkwarg: {}\n", r"catch\.yaml.*env\.kwarg.*env\.kwargs"),
        ("experiment/mine.yaml", "agent:\n  learning_rte: 1\n", r"experiment/mine.*agent\.learning_rate"),
    ],
)
def test_C03_mistakes_in_files_are_refused_at_the_start(config_folder, file, text, message):
    (config_folder / file).parent.mkdir(exist_ok=True)
    (config_folder / file).write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_config()


def test_experiments_choose_groups_and_values_and_the_command_line_wins(config_folder):
    (config_folder / "experiment").mkdir(exist_ok=True)
    (config_folder / "experiment" / "mine.yaml").write_text(
        "defaults:\n  - override /agent: impala\n  - override /env: catch\nseed: 7\nagent:\n  learning_rate: 2e-3\n"
    )
    loaded = load_config(["experiment=mine", "seed=8"])
    assert (loaded.agent.name, loaded.env.suite, loaded.seed) == ("impala", "catch", 8)
    assert loaded.agent.settings["learning_rate"] == 2e-3


def test_keys_of_free_mappings_need_no_plus():
    loaded = load_config(["env=catch", "env.kwargs.rows=5", "env.kwargs.a.b=[1]", "env.params={c: 2}"])
    assert loaded.env.kwargs == {"rows": 5, "a": {"b": [1]}}
    assert loaded.env.params == {"c": 2}


def test_topologies_by_name_and_by_number():
    assert load_config().topology is None
    assert load_config(["topology=tpu-v3-2048"]).topology.hosts == 256
    topology = load_config(["topology.hosts=256", "topology.devices_per_host=8"]).topology
    assert (topology.hosts, topology.devices_per_host) == (256, 8)


def test_custom_agents_are_checked_against_their_own_fields():
    overrides = ["agent=custom", "agent.make=podracer.agents.ppo:PPO"]
    loaded = load_config([*overrides, "agent.kwargs.learning_rate=1e-3"])
    assert loaded.agent.settings == {"learning_rate": 1e-3}
    assert config_from_mapping(config_to_mapping(loaded)) == loaded
    with pytest.raises(ConfigError, match=r"agent\.kwargs\.learning_rte; did you mean agent\.kwargs\.learning_rate\?"):
        load_config([*overrides, "agent.kwargs.learning_rte=1e-3"])
    with pytest.raises(ConfigError, match=r"no module 'not_there'"):
        load_config(["agent=custom", "agent.make=not_there:Agent"])
    with pytest.raises(ConfigError, match=r"is no dataclass"):
        load_config(["agent=custom", "agent.make=podracer.agents.ppo:scan_minibatches"])


def test_composing_leaves_the_hydra_of_an_application_around_it_alone():
    instance = GlobalHydra.instance()
    outer = instance.hydra = object()
    try:
        load_config()
        assert GlobalHydra.instance().hydra is outer
    finally:
        GlobalHydra.instance().hydra = None


_OPTIONS = [option for option, _ in locations.config_files() if "/" in option]
_SMALL_GROUPS = [option for option in _OPTIONS if not option.startswith("env/")]


@pytest.mark.parametrize("option", _SMALL_GROUPS)
def test_contract_viii_every_file_composes(option):
    group, _, name = option.partition("/")
    needs = {"agent/custom": ["agent.make=podracer.agents.ppo:PPO"], "replay/dataset": ["replay.folder=recording"]}
    loaded = load_config([f"{group}={name}", *needs.get(option, [])])
    assert config_from_mapping(yaml.safe_load(yaml.safe_dump(config_to_mapping(loaded)))) == loaded


def test_contract_viii_every_environment_has_a_schema_and_an_id_that_exists():
    import envpool
    import gymnax

    known = {"gymnax": gymnax.registered_envs, "envpool": envpool.list_all_envs()}
    checked = 0
    for option, path in locations.config_files():
        if not option.startswith("env/"):
            continue
        env = from_mapping(load_object(config.SECTIONS["env"], "env"), yaml.safe_load(path.read_text()), "env")
        assert env.suite == option.split("/")[1]
        if option.count("/") == 2:
            assert env.id in known[env.suite], option
            checked += 1
    assert checked > 40


def test_every_setting_says_what_it_means():
    schemas = [path for names in config.COMPONENTS.values() for path in names.values()]
    schemas += [*config.SECTIONS.values(), config.TOPOLOGY]
    for path in schemas:
        cls = load_object(path, "schema")
        for setting in (known for known in dataclasses.fields(cls) if known.init):
            assert setting.name in config.BUILT or setting.name in field_docs(cls), f"{path}.{setting.name}"


def test_nothing_of_jax_is_needed_before_a_configuration_is_made_nor_started_by_it():
    code = (
        "import sys, podracer, podracer.composition\n"
        "assert 'jax' not in sys.modules\n"
        "podracer.load_config(['mesh.emulated_devices=3'])\n"
        "podracer.train\n"
        "from jax._src import xla_bridge\n"
        "assert not xla_bridge.backends_are_initialized()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(podracer.__file__).parents[1])


def test_a_composition_that_is_changed_leaves_the_next_one_as_it_was():
    """Hydra's store is shared between compositions, and what is read from it is not."""
    composition.register()
    with initialize(config_path=None, version_base=composition.HYDRA_VERSION_BASE):
        first = compose(composition.PRIMARY, ["agent=ppo"])
        with open_dict(first):
            first.agent.learning_rate = 7.0
            first.env.kwargs.size = 3
            first.hydra_like = "new"
        second = compose(composition.PRIMARY, ["agent=ppo"])
    assert second.agent.learning_rate != 7.0 and "size" not in second.env.kwargs and "hydra_like" not in second
