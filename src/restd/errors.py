"""Errors that a user can act on: what is wrong, what was expected, what to do."""


class RestdError(Exception):
    """Base of all errors caused by input or environment, as opposed to bugs.

    The command line prints its message as one sentence and exits with code 2.

    >>> raise RestdError("items.csv has no column 'id'; name yours with --map id=COLUMN.")
    Traceback (most recent call last):
    restd.errors.RestdError: items.csv has no column 'id'; name yours with --map id=COLUMN.
    """


class DataError(RestdError):
    """A table, file or vector that cannot be used as it is."""


class ConfigError(RestdError):
    """A setting with an impossible value, an unknown name, or two settings that contradict each other."""


class ArtifactError(RestdError):
    """An artefact that is missing, damaged, of another kind, or made from other parents."""


class CapacityError(RestdError):
    """More items than the requested levels and codes can address."""


class MissingExtraError(RestdError):
    """An optional dependency is needed and not installed."""

    def __init__(self, package: str, *, extra: str, purpose: str) -> None:
        super().__init__(
            f"{purpose} needs the package '{package}': install it with pip install 'restd-retrieval[{extra}]'."
        )


class TrainingError(RestdError):
    """A run that cannot continue, because its loss is NaN or infinite."""


class Interrupted(RestdError):
    """A run that was interrupted by a signal, after it saved a checkpoint."""

    def __init__(self, message: str, *, signal: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + signal
        """Exit code that shells report for a process ended by this signal."""
