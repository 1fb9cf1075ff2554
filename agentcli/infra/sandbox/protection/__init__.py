"""Finds the files that commands must not change, and reverts changes that the kernel could not prevent."""
