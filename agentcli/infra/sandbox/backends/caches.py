"""Tells package managers where to keep caches when HOME is read-only, and not to wait for a network.

Few look for another place by themselves, many fail.

XDG_CACHE_HOME stays: browsers, models and environments that were downloaded before can still be read there.
"""

from __future__ import annotations

PRIVATE_TMP = "/tmp"  # noqa: S108  # the command's own

# Only of tools that need to write to run at all. Cargo and Maven manage with a read-only cache.
_VARIABLES = {
    "PIP_CACHE_DIR": "pip",
    "UV_CACHE_DIR": "uv",
    "npm_config_cache": "npm",
    "YARN_CACHE_FOLDER": "yarn",
    "BUN_INSTALL_CACHE_DIR": "bun",
    "DENO_DIR": "deno",
    "GOCACHE": "go-build",
    "GOLANGCI_LINT_CACHE": "golangci-lint",
    "CCACHE_DIR": "ccache",
    "SCCACHE_DIR": "sccache",
    "NUMBA_CACHE_DIR": "numba",
    "MPLCONFIGDIR": "matplotlib",
}

# Where no host can be reached, trying again takes minutes.
WITHOUT_NETWORK = {"npm_config_fetch_retries": "0", "PIP_RETRIES": "0", "CARGO_NET_RETRY": "0"}


def cache_environment(folder: str) -> dict[str, str]:
    """The variables that put caches below `folder`, and temporary files into the private /tmp."""
    return {"TMPDIR": PRIVATE_TMP} | {name: f"{folder}/{tool}" for name, tool in _VARIABLES.items()}
