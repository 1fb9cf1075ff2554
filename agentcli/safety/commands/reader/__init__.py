"""Reads the shell language: a text into the simple commands that can be seen in it, and why it is more than those.

`commands.read_commands` is the entry. It reads static words, pipelines, lists, redirections, subshells and
substitutions; all else it only looks into, and says so.
"""
