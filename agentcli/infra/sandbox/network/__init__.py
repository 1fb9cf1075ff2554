"""Gives confined commands the hosts they were granted, through a proxy outside and a relay inside the sandbox.

Knows nothing of commands or mounts. `relay` runs as a program of its own.
"""
