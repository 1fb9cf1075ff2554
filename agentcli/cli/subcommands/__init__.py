"""`agentcli NAME …`: one module for each group of subcommands.

What prompts and sessions need on the command line is in `cli/` itself.
"""
