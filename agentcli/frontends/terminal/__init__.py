"""The interactive session: app.py puts a live screen together, plain.py is the same line by line.

keys.py binds keys, key_actions.py carries them out, screen_commands.py adds slash commands of the screen, controller.py
runs the session. Nothing here decides what the agent does, reads settings or opens sessions.
"""
