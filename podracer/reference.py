"""What `--help` says: the commands and groups at once, every key with its meaning for `podracer train --help`."""

import ast
import inspect
import itertools
import textwrap
from collections.abc import Iterator
from typing import Any

import yaml

from podracer.locations import config_files, config_folder

_USAGE = """\
Podracer: one RL agent, written once, on Anakin (all on the accelerator) or Sebulba (any environment).

usage:
  podracer train    [GROUP=OPTION | KEY=VALUE ...] [-m]       train an agent; -m sweeps over comma-separated values
  podracer plan     [GROUP=OPTION | KEY=VALUE ...] [--json]   show who acts and who learns, without training
  podracer plan     --calibrate [KEY=VALUE ...] [--seconds S] measure this machine, propose what is fastest
  podracer train    resume=RUN_FOLDER                         go on with a run that ended or was killed
  podracer evaluate RUN_FOLDER [--checkpoint WHICH] [--episodes N] [--seed S] [--sample] [--table]
  podracer runs     [FOLDER] [--json]                         list runs: status, steps, return, age
  podracer compare  FOLDER... | KEY=VALUE,...                 a report of runs; overrides make them first
  podracer plot     FOLDER... [--group-by KEYS] [--out FILE]  curves and scores of runs, with intervals
  podracer --version | --help

examples:
  podracer train
  podracer train agent=impala runner=sebulba env=envpool/pong
  podracer train env=gymnax/breakout total_env_steps=1e7 agent.learning_rate=3e-4
  podracer train -m seed=0,1,2,3,4
  podracer plan runner=sebulba topology=tpu-v3-2048 env.num_envs=65536 total_env_steps=1e10
  podracer train agent=custom agent.make=my_agent:MyAgent agent.kwargs.learning_rate=1e-3
"""

_MORE = """\
Every key, its default and its meaning: podracer train --help
An agent or environment of your own:    README.md, experiments/examples/
"""


def overview() -> str:
    """What `podracer --help` prints, from the names of the configuration's files alone."""
    defaults = _default_choices()
    lines = [_USAGE, "groups (* is the default):"]
    for group, options in _groups().items():
        marked = (f"{option}*" if option == defaults.get(group) else option for option in options)
        # The options of a folder go on lines of their own: env has dozens.
        folders: dict[str, list[str]] = {}
        for option in marked:
            folders.setdefault(option.rpartition("/")[0], []).append(option)
        title = group
        for listed in folders.values():
            text = ", ".join(listed)
            lines.append(textwrap.fill(text, 110, initial_indent=f"  {title:<10} ", subsequent_indent=" " * 13))
            title = ""
    return "\n".join([*lines, "", _MORE.rstrip()])


def train_reference() -> str:
    """What `podracer train --help` prints: the overview, and every key with its default and its meaning."""
    from podracer.config import BUILT, COMPONENTS, SECTIONS, TOPOLOGY, Custom, Settings, schema_of
    from podracer.importing import load_object

    lines = [overview(), "", "keys, their defaults and their meaning (an option's file may set another default):", ""]
    lines += _key_lines(Settings, "")
    for group, names in COMPONENTS.items():
        for name in names:
            lines += ["", f"{group}={name}", *_key_lines(schema_of(group, name), f"{group}.", BUILT)]
    lines += ["", "agent=custom", *_key_lines(Custom, "agent.")]
    for section in SECTIONS:
        lines += ["", section, *_key_lines(schema_of(section, None), f"{section}.")]
    topology = load_object(TOPOLOGY, "topology")
    lines += ["", "topology: a name such as tpu-v3-2048, or", *_key_lines(topology, "topology.")]
    return "\n".join(lines)


def field_docs(cls: type) -> dict[str, str]:
    """Reads the docstrings below the fields of a dataclass; Python itself does not keep them."""
    docs = {}
    for base in reversed(cls.__mro__[:-1]):
        body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0].body
        for statement, below in itertools.pairwise(body):
            is_field = isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
            is_text = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
            if is_field and is_text and isinstance(below.value.value, str):
                docs[statement.target.id] = " ".join(below.value.value.split())
    return docs


def _key_lines(cls: type, prefix: str, exclude: frozenset[str] = frozenset()) -> Iterator[str]:
    from podracer.conversion import plain_defaults, settings_of

    defaults, docs = plain_defaults(cls, exclude), field_docs(cls)
    for name in settings_of(cls, exclude):
        yield f"  {prefix}{name}" + (f"={_shown(defaults[name])}" if name in defaults else "  (required)")
        if name in docs:
            yield textwrap.fill(docs[name], 110, initial_indent=" " * 6, subsequent_indent=" " * 6)


def _shown(value: Any) -> str:
    """A value as it is written on the command line."""
    if value is None or isinstance(value, bool):
        return str(value).lower().replace("none", "null")
    if isinstance(value, list):
        return f"[{','.join(map(_shown, value))}]"
    return str(value)


def _groups() -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for option, _ in config_files():
        group, _, name = option.partition("/")
        if name:
            groups.setdefault(group, []).append(name)
    return groups


def _default_choices() -> dict[str, str]:
    config = yaml.safe_load((config_folder() / "config.yaml").read_text(encoding="utf-8"))
    return {group: option for default in config["defaults"] if default != "_self_" for group, option in default.items()}
