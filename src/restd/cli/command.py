"""How commands are declared: renamed options and moved commands that still work, and a group with a short form."""

from collections.abc import Callable
from copy import copy
from functools import wraps
from inspect import cleandoc
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from restd.cli.console import warn

RENAMED = {"--width": "--beam", "--rates": "--learning-rates", "--keep-heads": "--head-mode"}
"""Options under their old names, which still work for one release."""
LISTED = {
    "--encoder": "encoders",
    "--quantizer": "quantizers",
    "--policy": "policies",
    "--backbone": "backbones",
    "--objective": "objectives",
    "--objectives": "objectives",
    "--baseline": "rankers",
    "--baselines": "rankers",
    "--systems": "systems",
}
"""Options whose values are names of a registry (`restd list`)."""


def warn_deprecated(old: str, new: str) -> None:
    """Say that something has another name now, and that the old one will go."""
    warn(f"{old} is deprecated and will be removed in the next release; use {new} instead.")


def described(text: str | None, names: dict[str, str]) -> str:
    """Help of a command, with a line for each name it takes.

    >>> print(described("Do one of these.", {"this": "one thing", "that": "another"}))
    Do one of these.
    <BLANKLINE>
    this: one thing
    that: another
    """
    return f"{cleandoc(text or '')}\n\n" + "\n".join(f"{name}: {sentence}" for name, sentence in names.items())


class Command(TyperCommand):
    """A command that accepts old names of its options (`RENAMED`), and whose help lists registered names (`LISTED`)."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Add the names of registries to the help; they are imported for this command's help alone."""
        from restd.cli.listing import registry

        for param in self.params:
            for kind in (LISTED[option] for option in param.opts if option in LISTED):
                vars(param)["help"] = f"{getattr(param, 'help', '')} Known: {', '.join(registry(kind))}."
        super().format_help(ctx, formatter)

    def make_parser(self, ctx: Any) -> Any:
        """Add the old names to the parser; they fill the same parameter."""
        parser = super().make_parser(ctx)
        for _, alias in self._aliases():
            alias.add_to_parser(parser, ctx)
        return parser

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse, and warn of every old name that was used."""
        before_separator = args[: args.index("--")] if "--" in args else args
        names = {word.partition("=")[0] for word in before_separator}
        for new, alias in self._aliases():
            if alias.opts[0] in names and not ctx.resilient_parsing:
                warn_deprecated(alias.opts[0], new)
        return super().parse_args(ctx, args)

    def _aliases(self) -> list[tuple[str, Any]]:
        own = {name: param for param in self.params for name in param.opts}
        aliases = []
        for old, new in RENAMED.items():
            if new in own and old not in own:
                alias = copy(own[new])
                alias.opts = [old]
                aliases.append((new, alias))
        return aliases


class ShortFormGroup(TyperGroup):
    """A group whose first command runs when options follow the group's own name: `restd index --catalog …`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Insert the first command's name where there are only options."""
        if args and args[0].startswith("-") and args[0] not in ctx.help_option_names:
            args = [next(iter(self.commands)), *args]
        return super().parse_args(ctx, args)


class MainGroup(TyperGroup):
    """The command itself: the quickstart first, then groups of commands, then single ones, as work proceeds."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Names of the commands in the order of the help."""
        return sorted(
            self.commands, key=lambda name: (name != "quickstart", not isinstance(self.commands[name], TyperGroup))
        )


def examples(*commands: str) -> str:
    """Examples for the end of a help text, each its own paragraph: typer keeps no other line breaks.

    >>> examples("restd doctor", "restd list encoders").split(2 * chr(10))
    ['Examples:', 'restd doctor', 'restd list encoders']
    """
    return "\n\n".join(("Examples:", *commands))


def add_command(
    app: typer.Typer,
    name: str,
    function: Callable[..., None],
    *,
    panel: str | None = None,
    epilog: str | None = None,
) -> None:
    """Register a function as a command, in a panel of the help; the epilog stands at the end of its own help."""
    app.command(name, cls=Command, rich_help_panel=panel, epilog=epilog)(function)


def add_moved(app: typer.Typer, name: str, function: Callable[..., None], new: str) -> None:
    """Keep a command under its old name, out of the help and with a warning."""

    @wraps(function)
    def moved(**options: Any) -> None:
        warn_deprecated(f"restd {name}", new)
        function(**options)

    app.command(name, cls=Command, hidden=True)(moved)
