"""CPU time of one turn early and late in a session: prompts that a scripted model answers, without network or disk."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
import time
from pathlib import Path

from loopback import median

from agentcli import Agent

TURNS = 1_000
SAMPLE = 20  # turns that are taken together


async def cpu_per_turn(folder: Path) -> list[float]:
    """Milliseconds of CPU time of each turn."""
    script = folder / "script.jsonl"
    script.write_text(
        f"{json.dumps({'text': 'It does. ' * 40, 'usage': {'input_tokens': 9, 'output_tokens': 90}})}\n" * TURNS
    )
    took = []
    async with Agent(f"scripted/{script}", cwd=folder) as agent:
        for number in range(TURNS):
            before = time.process_time()
            await agent.run(f"{number}: does it work? " * 10)
            took.append((time.process_time() - before) * 1_000)
    return took


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        os.environ["AGENTCLI_HOME"] = f"{name}/home"
        took = asyncio.run(cpu_per_turn(Path(name)))
    early, late = median(took[10 : 10 + SAMPLE]), median(took[-SAMPLE:])
    print(f"turns 10 to {10 + SAMPLE}       {early:.2f} ms CPU each, median")
    print(f"the last {SAMPLE} of {TURNS:,}  {late:.2f} ms CPU each, median; {late / early:.2f} x")


if __name__ == "__main__":
    main()
