"""Groups of commands: a noun with its verbs."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

import click


class Noun(click.Group):
    """A noun whose verbs are its commands. ``default``: the verb where none is given, as in ``queues``.

    In version 0.3 a name could follow the noun, as in ``queues mail``: it is still understood.
    """

    def __init__(self, *arguments: Any, default: str = "", **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.default = default

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the default verb in front, where another word is, or none."""
        if self.default and not self._names_verb(ctx, args):
            if args and not args[0].startswith("-"):
                old, new = f"{self.name} {args[0]}", f"{self.name} {self.default} {args[0]}"
                note_former(ctx, f"sluicemq {old}", f"sluicemq {new}")
            args = [self.default, *args]
        return super().parse_args(ctx, args)

    def _names_verb(self, ctx: click.Context, args: list[str]) -> bool:
        return bool(args) and (
            args[0] in self.commands
            or args[0] in ctx.help_option_names
            or bool(get_close_matches(args[0], self.commands, 1, cutoff=0.8))
        )


def note_former(ctx: click.Context, old: str, new: str) -> None:
    """Say on stderr what to write in place of a command of an earlier version."""
    if ctx.obj is not None:  # a shell that completes a line has no invocation
        ctx.obj.note(f"sluicemq: `{old}` is now `{new}`")
