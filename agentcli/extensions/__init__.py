"""Holds what people add to agentcli, a folder for each feature with its `slash_commands` and `subcommand`."""
