"""Plans what is mounted over names and files, and provides the files and empty folders to mount."""
