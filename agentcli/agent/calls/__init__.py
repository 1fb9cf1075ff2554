"""Runs the calls of a reply: batches, one call through its stages, retries, what the model reads of the result.

Whether a call may run is decided in `permissions`; what it does to the machine goes through the sandbox alone.
"""
