"""What an error says of a name that nothing bears."""

import difflib
from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Names the nearest known names; all of them if none is near."""
    known = sorted(known)
    by_lower_case = {candidate.lower(): candidate for candidate in known}
    near = difflib.get_close_matches(name.lower(), by_lower_case, n=3)
    if near:
        return "did you mean " + " or ".join(repr(by_lower_case[match]) for match in near) + "?"
    return "known are " + ", ".join(known) if known else "there are none"
