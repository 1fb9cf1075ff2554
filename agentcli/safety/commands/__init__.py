"""Judges shell commands before they run: what they touch, whether they only read, which rules cover them.

`reader` makes simple commands of a text; `walk` goes through them as a shell would and makes one verdict of all. What
programs are known for stands in tables: `refused` are catastrophes, `reads` what only reads, `effects` and `paths`
what is changed and where it leads. `records` are what goes in and out, and match permission rules, those about paths
too. Nothing here runs a command or looks at a disk.
"""
