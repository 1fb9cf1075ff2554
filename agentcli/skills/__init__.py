"""Skills: folders with a SKILL.md, which load in three steps: name and description, instructions, resources."""
