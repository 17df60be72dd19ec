"""The commands in the documents, as they stand there."""

import re
import subprocess
from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parents[1]
_DOCUMENTS = ["README.md", "benchmarks/README.md", "experiments/README.md"]


@pytest.mark.parametrize("document", _DOCUMENTS)
def test_a_shell_takes_the_commands_as_they_stand(document):
    lines = (_ROOT / document).read_text().splitlines()
    commands = [line.strip() for line in lines if re.match(r"\s*(podracer|python|pip|make) ", line)]
    assert commands
    for command in commands:
        done = subprocess.run(["bash", "-n", "-c", command], capture_output=True, text=True)
        assert done.returncode == 0, f"{command}: {done.stderr}"
        # Without quotes a shell looks for files with such names, and some stop where there are none.
        bare = re.sub(r"'[^']*'|\"[^\"]*\"", "", command.partition("  #")[0])
        assert not re.search(r"[*?\[\]]", bare), command
