"""The interactive session: app.py puts a live screen together, plain.py is the same line by line."""
