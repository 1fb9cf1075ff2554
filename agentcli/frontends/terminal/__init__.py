"""The interactive session: app.py runs it on a live screen, plain.py line by line."""
