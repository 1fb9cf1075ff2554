"""Reads the shell language: a text into the simple commands that can be seen in it, and why it is more than those."""
