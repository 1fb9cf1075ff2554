"""Decides whether a call may run: finds its facts once, holds them against rules and modes, and asks about it."""
