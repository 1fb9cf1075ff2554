"""Skills: folders with a SKILL.md: name and description, instructions, resources load in turn (docs/skills.md)."""
