"""Builds the parts of a session from the settings; only these modules know both. `app.py` puts them together."""
