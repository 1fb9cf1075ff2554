"""Holds what the model can do: the tool protocol and registry, observations, text edits, and the tools themselves.

Tools reach files and commands only through the `Sandbox` they are given. They know no session, no front end and no
settings.
"""
