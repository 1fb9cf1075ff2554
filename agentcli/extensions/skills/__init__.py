"""Skills: folders with a SKILL.md. Name and description, instructions, resources load in turn (docs/skills.md)."""
