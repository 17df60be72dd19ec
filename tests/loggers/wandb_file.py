"""Reads the `.wandb` files that W&B writes offline."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_FILE_HEADER, _BLOCK, _RECORD_HEADER = 7, 32 * 1024, 7
_FULL, _LAST = 1, 4


def _records(data: bytes) -> Iterator[bytes]:
    """The records of a file in LevelDB's log format: checksum, length and type, then that much data.

    A record is cut where a block of 32 KiB ends; the pieces have types first, middle and last.
    """
    position, record = _FILE_HEADER, b""
    while position + _RECORD_HEADER <= len(data):
        left_in_block = _BLOCK - position % _BLOCK
        if left_in_block < _RECORD_HEADER:
            position += left_in_block
            continue
        _, length, kind = struct.unpack_from("<IHB", data, position)
        position += _RECORD_HEADER
        record += data[position : position + length]
        position += length
        if kind in (_FULL, _LAST):
            yield record
            record = b""


def read_runs(folder: Path) -> list[dict[str, Any]]:
    """What W&B wrote below a run's folder, a dictionary for every process, in the order of their start.

    Returns:
      `id`, `name`, `config`, `rows` (dictionaries), `axes` (the x-axis of every pattern of metrics), `exit_code`.
    """
    from wandb.proto.wandb_internal_pb2 import Record

    runs = []
    for path in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        run: dict[str, Any] = {"config": {}, "rows": [], "axes": {}, "exit_code": None}
        for data in _records(path.read_bytes()):
            record = Record.FromString(data)
            match record.WhichOneof("record_type"):
                case "run":
                    run |= {"id": record.run.run_id, "name": record.run.display_name}
                    run["config"] |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
                case "config":
                    run["config"] |= {item.key: json.loads(item.value_json) for item in record.config.update}
                case "history":
                    items = record.history.item
                    run["rows"].append(
                        {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}
                    )
                case "metric":
                    run["axes"][record.metric.glob_name or record.metric.name] = record.metric.step_metric
                case "exit":
                    run["exit_code"] = record.exit.exit_code
        runs.append(run)
    return runs
