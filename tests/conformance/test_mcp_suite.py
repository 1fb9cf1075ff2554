"""The official conformance suite for MCP clients, of both eras, against our client."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.npm import installed

HERE = Path(__file__).parent
SUITE = "@modelcontextprotocol/conformance@0.2.0-alpha.12"  # the first with scenarios of 2026-07-28


@pytest.mark.full
@pytest.mark.slow
def test_our_client_passes_the_suite_but_for_the_scenarios_that_are_listed(tmp_path: Path) -> None:
    programs = installed(SUITE)
    client = f"{sys.executable} {HERE / 'mcp_conformance_client.py'}"
    flags = ("--suite", "all", "--expected-failures", HERE / "mcp_expected_failures.yml", "-o", tmp_path)
    ran = subprocess.run(
        [programs / "node", programs / "conformance", "client", "--command", client, *flags],
        env=os.environ | {"PYTHONPATH": str(HERE.parents[1])},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    told = ran.stdout[-4_000:]
    assert ran.returncode == 0, told
    assert "✓ sse-retry" in told, told
    assert "✓ sep-2322-client-request-state" in told, told
