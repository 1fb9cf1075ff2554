"""The session as it is shown: transcript and live region (screen.py), events (turn_view.py), the status line.

The view of a tool is a row in tool_views.py. Nothing here takes keys or submits operations.
"""
