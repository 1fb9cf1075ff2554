"""Summaries on the disk: for how long and how many they are kept, and what stands in the way."""

from __future__ import annotations

import os
import time
from pathlib import Path

from agentcli.infra.state_files import SummaryFiles


def test_a_summary_is_kept_for_its_time(tmp_path: Path) -> None:
    kept = SummaryFiles(tmp_path / "summaries", hours=1, max_files=10)
    assert kept.get("a") is None
    kept["a"] = "Asked: é. \ud800"
    assert SummaryFiles(tmp_path / "summaries", hours=1, max_files=10).get("a") == "Asked: é. ?"
    assert (tmp_path / "summaries/a").stat().st_mode & 0o777 == 0o600
    os.utime(tmp_path / "summaries/a", (0, time.time() - 3_601))
    assert kept.get("a") is None


def test_the_oldest_go_where_there_are_too_many(tmp_path: Path) -> None:
    kept = SummaryFiles(tmp_path, hours=1, max_files=10)
    for number in range(30):
        kept[f"k{number}"] = str(number)
        os.utime(tmp_path / f"k{number}", (0, time.time() - 100 + number))
    assert 10 <= len(list(tmp_path.iterdir())) <= 12
    assert kept.get("k29") == "29"
    assert kept.get("k0") is None


def test_a_folder_that_cannot_be_written_costs_nothing_but_the_summary(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    kept = SummaryFiles(tmp_path / "file", hours=1, max_files=10)
    kept["a"] = "text"
    assert kept.get("a") is None
