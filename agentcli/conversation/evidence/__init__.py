"""Checks what a final message claims against the log: exit codes, summaries of outputs, changes of files.

`claims` finds what is claimed, with `sentences`, `wording` and `files_claimed`; `runs` reads commands and their outputs
by the tables in `runners.toml`; `verdicts` holds the one against the other. Nothing here runs a command or asks a
model. All of it is imported only when an answer may claim something.
"""
