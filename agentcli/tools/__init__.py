"""Holds what the model can do: the tool protocol and registry, observations, text edits, and the tools themselves.

Tools reach files and commands only through their `Sandbox`. They do not know sessions, front ends or settings.
"""
