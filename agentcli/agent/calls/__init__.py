"""Runs a reply's calls in batches: each call goes through its stages, with retries, and yields a result.

`permissions` decides if a call may run; all its effects on the machine go through the sandbox.
"""
