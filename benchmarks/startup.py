"""`agentcli --version` against bare Python, in the same run; and what is imported before the prompt is shown."""

from __future__ import annotations

import subprocess
import sys

from loopback import cpu_of, environment, median, workspace

HEAVY = (
    "httpx2",
    "httpcore2",
    "anthropic",
    "openai",
    "ollama",
    "tiktoken",
    "mcp",
    "httptools",
    "python_socks",
    "agentcli.llm.http",
    "agentcli.llm.providers.anthropic",
)


def main(runs: int = 9) -> None:
    agentcli = [sys.executable, "-m", "agentcli", "--version"]
    bare = [sys.executable, "-c", "pass"]
    for command in (agentcli, bare):
        cpu_of(command)
    ours, floor = [], []
    for _ in range(runs):
        ours.append(cpu_of(agentcli)["cpu"] * 1000)
        floor.append(cpu_of(bare)["cpu"] * 1000)
    print(f"--version            {median(ours):6.1f} ms CPU (min {min(ours):.1f}, max {max(ours):.1f})")
    print(f"python -c pass       {median(floor):6.1f} ms CPU (min {min(floor):.1f}, max {max(floor):.1f})")
    print(f"ratio                {median(ours) / median(floor):6.2f}")
    with workspace() as (repository, home):
        code = (
            "import sys, agentcli.__main__, agentcli.cli.main, agentcli.settings.load, agentcli.settings.files, "
            "agentcli.frontends.terminal.console; "
            "print(*sorted(sys.modules), sep='\\n')"
        )
        env = environment("http://127.0.0.1:9", home)
        listed = subprocess.run(
            [sys.executable, "-c", code], cwd=repository, env=env, capture_output=True, text=True, check=True
        )
    modules = listed.stdout.split()
    heavy = [name for name in modules if name in HEAVY]
    print(
        f"modules before the prompt: {len(modules)}; of provider, tokenizer or HTTP code: {', '.join(heavy) or 'none'}"
    )
    for name in modules:
        if name.startswith("agentcli") or "." not in name:
            print(f"  {name}")


if __name__ == "__main__":
    main()
