"""Reads the permission rules of the settings, and those that the person granted for good."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence

from agentcli.agent.permissions.rule_checks import check_rule
from agentcli.agent.permissions.rules import Rule, Rules, Verb, parse_rule
from agentcli.errors import UsageError, UserError
from agentcli.infra.grants import FileGrants
from agentcli.settings.load import Config
from agentcli.tools.tool import Tool


def configured_rules(
    config: Config,
    grants: FileGrants,
    tools: Sequence[Tool],
    *,
    on_notice: Callable[[str], None],
    brings_tools: bool,
    servers: Collection[str] = (),
) -> Rules:
    """Raises `ConfigError` for a rule that can never hold.

    What may be a mistake, and a grant that makes no sense, is told by `on_notice`. With `brings_tools` a rule may name
    tools under any name; `servers` begin the names of tools that may not be known yet.
    """
    permissions = config.settings.permissions
    rules = Rules()
    verbs: tuple[tuple[Verb, tuple[str, ...]], ...] = (
        ("allow", permissions.allow), ("ask", permissions.ask), ("deny", permissions.deny),
    )  # fmt: skip
    for verb, texts in verbs:
        for text in texts:
            key = f"permissions.{verb}"
            try:
                rule = parse_rule(text, "settings")
                warning = check_rule(rule, verb, tools, written=text, under_any_name=brings_tools)
            except UsageError as error:
                raise config.error(str(error), key, item=text) from error
            of_server = any(f"{rule.tool}__".startswith(prefix) for prefix in servers)
            if warning and not of_server:
                on_notice(str(config.error(warning, key, item=text)))
            rules.of(verb).append(rule)
    for verb, rule in _kept(grants, tools, on_notice):
        rules.of(verb).append(rule)
    return rules


def check_hosts(config: Config) -> None:
    """Raises `ConfigError` for a host that can be none."""
    for key, hosts in (("sandbox.hosts", config.settings.sandbox.hosts), ("web.hosts", config.settings.web.hosts)):
        for host in hosts:
            from agentcli.infra.sandbox.network.host_grants import read_grant  # few grant any

            try:
                read_grant(host)
            except ValueError as error:
                raise config.error(str(error), key, item=host) from error


def _kept(grants: FileGrants, tools: Sequence[Tool], on_notice: Callable[[str], None]) -> Iterator[tuple[Verb, Rule]]:
    """What the person wants for good; what makes no sense is told and left out."""
    try:
        kept: list[tuple[Verb, str, str]] = [("allow", text, "") for text in grants.list()]
        kept += [(one.verb, one.rule, one.quote) for one in grants.restrictions()]
    except UserError as error:
        on_notice(str(error))
        return
    for verb, text, quote in kept:
        try:
            rule = parse_rule(text, "granted", quote)
            check_rule(rule, verb, tools, written=text, more_may_come=True)
            yield verb, rule
        except UsageError as error:
            on_notice(f"{grants.file}: {error} This {'grant' if verb == 'allow' else 'rule'} is left out.")
