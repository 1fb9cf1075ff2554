"""Output styles: Markdown files that change how the model answers. The person chooses one of them."""

from collections.abc import Callable
from functools import partial

from msgspec import Struct

from agentcli.agent.commands.command import CommandHost, Outcome, SlashCommand
from agentcli.errors import ConfigError, UsageError, did_you_mean
from agentcli.extensions.skills.skill import is_on, one_line, split_frontmatter
from agentcli.settings.files import home_of, markdown_files, read_small_file
from agentcli.settings.load import Config
from agentcli.settings.trust import STYLE_FOLDERS, definition_folders


class OutputStyle(Struct, frozen=True):
    """A style. Its text replaces agentcli's own instructions, or follows them if it `keeps_instructions`."""

    text: str
    description: str
    keeps_instructions: bool


def find_styles(config: Config, on_notice: Callable[[str], None]) -> dict[str, OutputStyle]:
    """Return the styles by name: the person's, and a trusted project's, which override them."""
    folders = [home_of(config.environment) / ".claude/output-styles", config.paths.config / "output-styles"]
    folders += reversed(definition_folders(config.cwd, STYLE_FOLDERS)) if config.project.is_allowed else []
    styles: dict[str, OutputStyle] = {}
    for file in (file for folder in folders for file in markdown_files(folder)):
        try:
            keys, body = split_frontmatter(read_small_file(file))
        except (OSError, ValueError) as error:
            on_notice(f"{file} is not an output style: {error}.")
            continue
        keeps = is_on(keys, "keep-coding-instructions", default=False)
        styles[one_line(keys, "name") or file.stem] = OutputStyle(body.strip(), one_line(keys, "description"), keeps)
    return styles


def chosen_style(config: Config, on_notice: Callable[[str], None]) -> OutputStyle | None:
    """Return the style of the settings; None for agentcli's own. Raises `ConfigError` if there is none of that name."""
    name = config.settings.instructions.output_style
    if name == "default":
        return None
    styles = find_styles(config, on_notice)
    if name not in styles:
        hint = did_you_mean(name, styles)
        raise ConfigError(
            f"There is no output style {name!r}{hint} (instructions.output_style). To list them: /output-style"
        )
    return styles[name]


def style_command(config: Config) -> SlashCommand:
    return SlashCommand("output-style", "list the output styles, or choose one", partial(_choose, config), "[NAME]")


async def _choose(config: Config, host: CommandHost, name: str) -> Outcome:
    problems = list[str]()
    styles = find_styles(config, problems.append)
    if not name:
        current = config.settings.instructions.output_style or "default"
        rows = {"default": "agentcli's own"} | {key: style.description for key, style in styles.items()}
        lines = [f"{'*' if key == current else ' '} {key}  {text}".rstrip() for key, text in rows.items()]
        return "\n".join([*lines, *problems])
    if name not in (*styles, "default"):
        raise UsageError(f"There is no output style {name!r}{did_you_mean(name, styles)}.")
    stored = await host.store_setting("instructions.output_style", name)
    return f"{stored} It takes effect the next time you start agentcli."
