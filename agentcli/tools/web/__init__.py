"""Fetches and searches the web for the web tools. Addresses are judged in `safety/urls.py`."""
