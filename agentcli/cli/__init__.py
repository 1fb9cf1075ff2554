"""The command line: options become settings, settings a front end. Nothing decides here what the agent does."""
