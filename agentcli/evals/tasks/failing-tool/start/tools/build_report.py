"""Builds report/summary.json: the figures of the months that report.json names."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "report" / ".lock"
CACHE = ROOT / ".cache"


def figures(month: str) -> dict:
    cached = CACHE / f"{month}.json"
    if cached.exists():
        return json.loads(cached.read_text())
    done = subprocess.run(
        [str(ROOT / "tools" / "aggregate"), str(ROOT / "data" / f"{month}.csv")],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    CACHE.mkdir(exist_ok=True)
    cached.write_text(done.stdout)
    return json.loads(done.stdout)


def build() -> dict:
    about = json.loads((ROOT / "report.json").read_text())
    months = [figures(month) for month in about["months"]]
    return {
        "title": about["title"],
        "months": months,
        "total_cents": sum(month["net_cents"] for month in months),
    }


def main() -> None:
    try:
        with LOCK.open("x") as lock:
            lock.write(f"{os.getpid()} {time.strftime('%Y-%m-%d %H:%M')}\n")
    except FileExistsError:
        pid, since = LOCK.read_text().strip().split(" ", 1)
        sys.exit(f"report/.lock: another build (process {pid}, since {since}) is at work.")
    try:
        summary = build()
        (ROOT / "report" / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    finally:
        LOCK.unlink()
    print(f"report/summary.json: {len(summary['months'])} months, {summary['total_cents'] / 100:,.2f}")


if __name__ == "__main__":
    main()
