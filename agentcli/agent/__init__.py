"""The agent: the loop, its requests and calls, sessions, permissions, slash commands.

It takes operations and publishes events. It knows no front end, no disk and no provider by name; `interfaces` defines
what it needs from the machine.
"""
