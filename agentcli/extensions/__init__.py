"""Features that people add to agentcli: a folder for each one, with its slash commands and its subcommand."""
