"""A whole one-shot run against a loopback server, against `import asyncio, ssl` in the same run."""

from __future__ import annotations

import sys

from loopback import cpu_of, environment, loopback, median, workspace


def main(runs: int = 9) -> None:
    with loopback("hello") as (url, requests), workspace() as (repository, home):
        ask = [sys.executable, "-m", "agentcli", "-p", "What is 2+2?"]
        floor = [sys.executable, "-c", "import asyncio, ssl"]
        env = environment(url, home)
        cpu_of(ask, cwd=repository, env=env)
        ours, floors, walls, firsts, sizes = [], [], [], [], []
        for number in range(1, runs + 1):
            run = cpu_of(ask, cwd=repository, env=env)
            request = requests()[number]
            ours.append(run["cpu"])
            walls.append(run["wall"])
            sizes.append(run["rss"])
            firsts.append(request["arrived"] - run["started"])
            floors.append(cpu_of(floor)["cpu"])
    print(
        f"one-shot             {median(ours):.3f} CPU s (min {min(ours):.3f}, max {max(ours):.3f}), {median(walls):.3f} s wall"
    )
    print(f"first request        {median(firsts):.3f} s after exec (min {min(firsts):.3f})")
    print(f"peak memory          {median(sizes):.0f} MiB")
    print(f"import asyncio, ssl  {median(floors):.3f} CPU s; ratio {median(ours) / median(floors):.2f}")


if __name__ == "__main__":
    main()
