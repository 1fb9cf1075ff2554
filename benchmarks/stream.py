"""20,000 deltas (100 kB) through a one-shot run, as fast as they can be read: CPU seconds beyond one of one delta.

Then 3,000 deltas at 100 a second: CPU seconds of the whole run, of which nearly all is waking up for each.
"""

from __future__ import annotations

import sys

from loopback import cpu_of, environment, loopback, median, workspace


def main(runs: int = 5) -> None:
    ask = [sys.executable, "-m", "agentcli", "-p", "stream"]
    with workspace() as (repository, home):
        with loopback("hello") as (url, _):
            cpu_of(ask, cwd=repository, env=environment(url, home))
            base = [cpu_of(ask, cwd=repository, env=environment(url, home))["cpu"] for _ in range(runs)]
        with loopback("stream") as (url, _):
            full = [cpu_of(ask, cwd=repository, env=environment(url, home)) for _ in range(runs)]
    beyond = median([run["cpu"] for run in full]) - median(base)
    print(
        f"20,000 deltas        {beyond:.3f} CPU s beyond one-shot ({median(base):.3f}); {beyond / 20_000 * 1e6:.1f} us a delta"
    )
    with workspace() as (repository, home), loopback("stream", deltas=3_000, delay_ms=10) as (url, _):
        paced = cpu_of(ask, cwd=repository, env=environment(url, home))["cpu"]
    print(f"3,000 at 100/s       {paced:.3f} CPU s; {(paced - median(base)) / 3_000 * 1e6:.0f} us a delta")
    print(
        f"stdout               {full[0]['stdout']:.0f} bytes, peak memory {median([run['rss'] for run in full]):.0f} MiB"
    )


if __name__ == "__main__":
    main()
