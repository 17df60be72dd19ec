"""What is handed out: the wheel with its configuration, and the pinned versions."""

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """The content of the wheel, as an installation has it."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=_ROOT, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(folder / "site")
    return folder / "site"


def test_the_wheel_carries_every_configuration_file(installed):
    expected = {path.relative_to(_ROOT / "configs") for path in (_ROOT / "configs").rglob("*.yaml")}
    shipped = {path.relative_to(installed / "podracer/configs") for path in installed.rglob("*.yaml")}
    assert shipped == expected
    assert not list(installed.glob("configs"))


def test_the_installed_command_composes_from_any_folder(installed, tmp_path):
    code = (
        "import podracer\n"
        f"assert podracer.__file__.startswith({str(installed)!r})\n"
        "print(podracer.load_config(['env=envpool/pong']).env.id)"
    )
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, check=True, capture_output=True, text=True
    )
    assert done.stdout.strip() == "Pong-v5"


def test_the_wheel_carries_the_launcher(installed):
    assert (installed / "hydra_plugins/podracer_vectorised.py").is_file()


def test_an_editable_installation_reads_the_checkout():
    # A copy of configs/ that an installation made would go stale.
    settings = tomllib.loads((_ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert "force-include" not in settings
    assert settings["dev-mode-dirs"] == ["."]


def test_constraints_pin_every_dependency_and_name_no_host_or_path():
    lines = [line for line in (_ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.+!]+", line) for line in lines)
    pinned = {_normalised(line.split("==")[0]) for line in lines}
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    needed = project["dependencies"] + extras["dev"] + extras["gymnax"] + extras["envpool"] + extras["gymnasium"]
    names = {_normalised(re.match(r"[A-Za-z0-9._-]+", requirement)[0]) for requirement in needed}
    assert names - {"podracer"} <= pinned


def _normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
