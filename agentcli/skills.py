"""Skills for programs that have a loop of their own."""

from agentcli.extensions.skills.activation import Activation, SkillRegistry
from agentcli.extensions.skills.skill import Skill, read_skill

__all__ = ["Activation", "Skill", "SkillRegistry", "read_skill"]
