"""Other programs that get the terminal for a while: pagers, editors, the person's own commands.

Our screen lets go of the terminal before (console.py, `hand_over`). Nothing here draws or knows the session.
"""
