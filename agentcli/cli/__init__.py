"""The command line: options become settings, settings a front end; one module for each group of subcommands.

Only here, in the library and in `app` is the configuration read. Nothing decides here what the agent does.
"""
