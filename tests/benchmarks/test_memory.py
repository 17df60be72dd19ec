import json

from benchmarks import memory


def test_B21_samples_are_taken_through_a_whole_run(tmp_path, capsys):
    memory.main(["--updates", "400", "--out", str(tmp_path / "memory.json")])
    result = json.loads((tmp_path / "memory.json").read_text())
    assert [sample["updates"] for sample in result["samples"]] == [100, 200, 300, 400]
    assert all(sample["resident_bytes"] > 2**20 for sample in result["samples"])
    assert "growth after the first quarter" in capsys.readouterr().out
