"""Judges shell commands before they run: what they touch, whether they only read, which rules cover them.

`reader` parses a text into simple commands; `walk` goes through them as a shell would and combines their verdicts into
one. `catastrophes` recognizes commands that must never run, `reads` commands that only read; `effects` and `paths` find
the files and hosts that a command reaches. `records` defines the input and the result, and matches permission rules for
commands and paths. Nothing in this package runs a command or looks at a disk.
"""
