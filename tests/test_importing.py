import os.path
import sys

import pytest

from podracer.importing import call, load_object
from podracer.suggest import did_you_mean


def test_objects_are_found_by_path():
    assert load_object("os.path:join", "env.make") is os.path.join
    assert load_object("collections:Counter.most_common", "env.make").__name__ == "most_common"


@pytest.mark.parametrize("path", ["os.path.join", ":join", "os.path:", ""])
def test_malformed_paths_are_refused(path):
    with pytest.raises(ValueError, match=r"agent\.make=.*package\.module:name"):
        load_object(path, "agent.make")


def test_missing_module_and_name_are_told_apart():
    with pytest.raises(ImportError, match=r"env\.make='no_such_module:f'.*no module 'no_such_module'"):
        load_object("no_such_module:f", "env.make")
    with pytest.raises(ImportError, match=r"no module 'os\.no_such_part'"):
        load_object("os.no_such_part:f", "env.make")
    with pytest.raises(ValueError, match=r"os\.path has no 'jion'; did you mean 'join'"):
        load_object("os.path:jion", "env.make")


def test_fault_inside_of_the_module_passes_through(tmp_path, monkeypatch):
    (tmp_path / "lacks_an_import.py").write_text("import no_such_dependency\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'no_such_dependency'$"):
        load_object("lacks_an_import:f", "env.make")
    assert "lacks_an_import" not in sys.modules


def test_arguments_are_checked_before_the_call():
    def function(size: int, depth: int = 1):
        return size, depth

    assert call(function, {"size": 3}, "env.kwargs") == (3, 1)
    with pytest.raises(ValueError, match=r"env\.kwargs=\{'sise': 3\}.*function takes \(size: int"):
        call(function, {"sise": 3}, "env.kwargs")


def test_type_errors_of_the_function_are_its_own():
    def function():
        return 1 + "a"

    with pytest.raises(TypeError, match="unsupported operand"):
        call(function, {}, "env.kwargs")


def test_suggestions():
    assert did_you_mean("cartpole", ["CartPole-v1", "Pendulum-v1"]) == "did you mean 'CartPole-v1'?"
    assert did_you_mean("zzz", ["b", "a"]) == "known are a, b"
    assert did_you_mean("zzz", []) == "there are none"
