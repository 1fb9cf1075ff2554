"""Features that people add to agentcli: a folder for each one, and their slash commands and subcommands."""
