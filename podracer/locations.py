"""Where the configuration files are."""

from collections.abc import Iterator
from pathlib import Path


def config_folder() -> Path:
    """Finds `configs/`: within the package where it is installed, beside it in a checkout."""
    package = Path(__file__).resolve().parent
    for folder in (package / "configs", package.parent / "configs"):
        if (folder / "config.yaml").is_file():
            return folder
    raise FileNotFoundError(f"neither {package} nor {package.parent} holds configs/config.yaml; install podracer again")


def config_files() -> Iterator[tuple[str, Path]]:
    """Lists the files as (group/option, path); the last group of an option is a folder: `env/gymnax/cartpole`."""
    folder = config_folder()
    for path in sorted(folder.rglob("*.yaml")):
        yield path.relative_to(folder).with_suffix("").as_posix(), path
