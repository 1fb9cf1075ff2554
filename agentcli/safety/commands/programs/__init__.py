"""Knows programs by name: which of their options only read, what they touch, and which run another command.

A new program that only reads is a row in `only_reading.ini`; one with a grammar of its own is a module.
"""
