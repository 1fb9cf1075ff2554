"""Runs the calls of a reply: in batches, each through its stages, with retries, to a result for the model.

`permissions` decides if a call may run; all its effects on the machine go through the sandbox.
"""
