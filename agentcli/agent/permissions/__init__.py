"""Decides if a call may run: finds its facts once, checks them against rules and the mode, and asks the person."""
