"""Connects confined commands to granted hosts, through a proxy outside and a relay inside the sandbox."""
