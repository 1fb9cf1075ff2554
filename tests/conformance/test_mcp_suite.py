"""The official conformance suite for MCP, of both eras of the protocol, against our client and our server."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.app.running import Place
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


@pytest.mark.oracle
def test_our_server_passes_the_suite_but_for_the_scenarios_that_are_listed(tmp_path: Path) -> None:
    programs, place = installed(SUITE), Place(tmp_path)
    with place.start("mcp", "serve", "--http") as server:
        address = server.wait_for(lambda line: "url" in line)
        token = Path(address["token_file"]).read_text().strip()
        flags = (
            "--suite",
            "all",
            "--expected-failures",
            HERE / "mcp_expected_failures.yml",
            "-o",
            tmp_path / "results",
        )
        ran = subprocess.run(
            [programs / "node", programs / "conformance", "server", "--url", address["url"], *flags],
            env=os.environ | {"MCP_TOKEN": token, "NODE_OPTIONS": f"--import {HERE / 'mcp_token.mjs'}"},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    told = ran.stdout[-6_000:] + ran.stderr[-2_000:]
    assert ran.returncode == 0, told
    assert "✓ http-header-validation" in told, told
    assert "✓ dns-rebinding-protection" in told, told
