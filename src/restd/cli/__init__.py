"""The `restd` command."""

from restd.cli.app import main

__all__ = ["main"]
