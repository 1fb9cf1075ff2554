"""Makes the parts of a session from the settings; `app.py` puts them together.

Only these modules know both the settings and the parts.
"""
