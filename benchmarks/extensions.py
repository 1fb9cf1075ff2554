"""Skills, agents and hooks that are configured, against none of them in the same run; a thousand skills; subagents."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import time
import tracemalloc
from pathlib import Path

from loopback import cpu_of, environment, loopback, median, workspace

from agentcli import Agent, AgentOptions
from agentcli.extensions.skills.find import format_list, skill_folders, skills_in
from agentcli.settings.files import find_paths
from agentcli.settings.load import load_config


def skill(folder: Path, number: int) -> None:
    folder = folder / f"skill-{number}"
    folder.mkdir(parents=True)
    words = "Does a thing that is described here in the words people use. Use when asked for it."
    (folder / "SKILL.md").write_text(f"---\nname: skill-{number}\ndescription: {words}\n---\n\n{'Do it. ' * 200}\n")


def configure(home: Path) -> None:
    for number in range(100):
        skill(home / "skills", number)
    (home / "agents").mkdir()
    for number in range(10):
        (home / f"agents/agent-{number}.md").write_text(
            f"---\nname: agent-{number}\ndescription: Does it.\n---\nDo it.\n"
        )
    group = "[[hooks.PreToolUse]]\nmatcher = 'Write'\n[[hooks.PreToolUse.hooks]]\ntype = 'command'\ncommand = 'true'\n"
    (home / "config.toml").write_text(group * 10)


def one_shots(pairs: int = 21) -> None:
    with loopback("hello") as (url, _), workspace() as (repository, plain), tempfile.TemporaryDirectory() as full:
        configure(Path(full))
        ask = [sys.executable, "-m", "agentcli", "-p", "What is 2+2?"]
        runs: dict[str, list[dict[str, float]]] = {plain: [], full: []}
        for number in range(pairs + 2):
            for home in (plain, full) if number % 2 else (full, plain):
                ran = cpu_of(ask, cwd=repository, env=environment(url, home))
                runs[home] += [ran] if number > 1 else []  # the first two fill caches
        for key in ("cpu", "wall"):
            none, some = (median([run[key] for run in runs[home]]) for home in (plain, full))
            ratio = median([b[key] / a[key] for a, b in zip(runs[plain], runs[full], strict=True)])
            print(
                f"one-shot {key:<5} none {none:.3f} s, with 100 skills, 10 agents, 10 hooks {some:.3f} s; ratio {ratio:.3f}"
            )


def thousand_skills() -> None:
    with tempfile.TemporaryDirectory() as base:
        folder = Path(base) / "skills"
        for number in range(1_000):
            skill(folder, number)
        config = load_config(Path(base), {}, paths=find_paths(f"{base}/home"))
        for name in ("first", "then"):
            began = time.perf_counter()
            catalog = skills_in(skill_folders(config, added=(folder,)), config)
            text = format_list({skill.name: skill.description for skill in catalog}, 4_000)
            print(
                f"1,000 skills, {name:<5} {1000 * (time.perf_counter() - began):.0f} ms, {len(text):,} characters told"
            )
        tracemalloc.start()
        kept = skills_in(skill_folders(config, added=(folder,)), config)
        print(f"1,000 skills, memory  {tracemalloc.get_traced_memory()[0] / 1e6:.1f} MB ({len(kept)})")
        tracemalloc.stop()


async def subagents() -> None:
    with tempfile.TemporaryDirectory() as base:
        os.environ["AGENTCLI_HOME"] = f"{base}/home"
        work = Path(base) / "work"
        work.mkdir()

        def script(name: str, *replies: dict[str, object]) -> str:
            (Path(base) / name).write_text("".join(json.dumps(reply) + "\n" for reply in replies))
            return f"scripted/{base}/{name}"

        def calls(count: int, model: str) -> dict[str, object]:
            asked = [{"name": "create_subagent", "input": {"task": f"{n}", "model": model}} for n in range(count)]
            return {"tool_calls": asked}

        # A reply of one delta waits before it and behind it.
        slow = script("slow", *({"text": "ok", "delay_ms": 500} for _ in range(20)))
        async with Agent(script("twenty", calls(20, slow), {"text": "done"}), cwd=work) as agent:
            began = time.perf_counter()
            await agent.run("go")
            print(f"20 tasks of 1 s, 4 at a time  {time.perf_counter() - began:.1f} s (floor 5.0 s)")
        quick = script("quick", *({"text": "ok"} for _ in range(121)))
        one = script("one", calls(1, quick), {"text": "done"}, calls(120, quick), {"text": "done"})
        settings = {"limits": {"max_turns": 100}}
        async with Agent(one, cwd=work, options=AgentOptions(settings=settings)) as agent:
            await agent.run("the first loads what all need")
            before, began = _memory_mb(), time.perf_counter()
            await agent.run("go")
            took = (time.perf_counter() - began) / 120
            print(f"a subagent that says one word {1000 * took:.1f} ms, {(_memory_mb() - before) / 120:.2f} MB")


def _memory_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


if __name__ == "__main__":
    one_shots()
    thousand_skills()
    asyncio.run(subagents())
