"""Gives confined commands the hosts they were granted, through a proxy outside and a relay inside the sandbox."""
