"""Judges texts before anything happens: shell commands, paths, web addresses, and secrets in output.

Everything here is pure: it opens no file, runs no program and asks nothing of the network. What it must know of the
machine comes in as arguments. Tools, permissions and the sandbox import it; it imports nothing else of agentcli.
"""
