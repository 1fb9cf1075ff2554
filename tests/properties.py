"""Two lengths for property tests: 25 examples, always the same, or all with `--hypothesis-profile full`."""

from __future__ import annotations

from typing import Any

from hypothesis import settings

QUICK_EXAMPLES = 25

settings.register_profile("quick", max_examples=QUICK_EXAMPLES, deadline=None, derandomize=True)
settings.register_profile("full", deadline=None, print_blob=True)
settings.load_profile("quick")


def examples(full: int, **others: Any) -> settings:
    """Return the settings of a property that the profile `full` tries with that many examples."""
    is_full = settings.get_current_profile_name() == "full"
    return settings(max_examples=full if is_full else min(full, QUICK_EXAMPLES), **others)
