"""Judges texts before anything happens: shell commands, paths, web addresses, and secrets in output.

Everything here is pure: it opens no file of the user, runs no program and uses no network. What it needs to know of the
machine comes in as arguments. Tools, permissions and the sandbox import it; it imports nothing else of agentcli.
"""
