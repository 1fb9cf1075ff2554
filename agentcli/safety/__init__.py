"""Judges texts before they have any effect: shell commands, paths, web addresses, and secrets in output.

This package is pure: it opens no file of the user, runs no program and uses no network. Facts about the machine are
passed as arguments. Tools, permissions and the sandbox import it; of agentcli, it imports only `patterns`.
"""
