"""How many updates are made before a runner reports."""

_TARGET_SECONDS = 1.0
_LARGEST_GROWTH = 8


class ChunkSizes:
    """Chooses the number of updates of the next chunk so that it lasts about one second.

    The size of chunks changes when metrics are read, and nothing else about a run.
    """

    def __init__(self, fixed: int | None):
        """Args: fixed: the size of every chunk, or None to measure."""
        self._fixed = fixed
        self._next = fixed or 1

    def next(self) -> int:
        return self._next

    def record(self, num_updates: int, seconds: float) -> None:
        """Takes note of how long a chunk has lasted."""
        if self._fixed is None:
            wanted = int(_TARGET_SECONDS * num_updates / max(seconds, 1e-6))
            self._next = max(1, min(wanted, _LARGEST_GROWTH * num_updates))
