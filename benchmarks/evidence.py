"""How often claims of final messages are judged right, on both halves of the corpus in tests/evidence.

Give `--show` for the rows of the tuning half that are not. Those of the measuring half are never shown: the reader
of claims is not to be made for them.
"""

import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
from tests.evidence.corpus import differences, rows


def measure(half: str) -> None:
    every, started = rows(half), time.perf_counter()
    wrong = list(differences(half))
    took_ms = (time.perf_counter() - started) * 1000 / len(every)
    claims, right, missed, invented, bluffed = 0, 0, 0, 0, 0
    for row in every:
        wanted = Counter((kind, verdict) for kind, verdict in row.claims)
        found = Counter((claim.kind, claim.verdict) for claim in row.checked())
        kinds, found_kinds = (
            Counter(kind for kind, _ in wanted.elements()),
            Counter(kind for kind, _ in found.elements()),
        )
        claims += wanted.total()
        right += (wanted & found).total()
        missed += (kinds - found_kinds).total()
        invented += (found_kinds - kinds).total()
        bluffed += sum(n for (_, verdict), n in (found - wanted).items() if verdict == "verified")
    share = (len(every) - len(wrong)) / len(every)
    print(
        f"{half}: {len(every) - len(wrong)} of {len(every)} messages right ({share:.0%}); {right} of {claims} claims right ({right / claims:.1%})"
    )
    print(
        f"  {missed} claims not found, {invented} found where there are none, {bluffed} verified that should not be; {took_ms:.1f} ms a message"
    )


if __name__ == "__main__":
    for half in ("tuning", "measuring"):
        measure(half)
    if "--show" in sys.argv:
        for row, found in differences("tuning"):
            print(f"\n{row.text}\n  {row.log}\n  wanted {sorted(row.claims)}\n  found  {found}")
