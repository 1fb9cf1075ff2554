"""Finds what commands may not change, and restores what they changed where the kernel could not prevent it."""
