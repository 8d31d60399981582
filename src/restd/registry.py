"""One kind of registry for everything that is chosen by name.

An entry has a name, a one-sentence summary, and whatever makes the thing. Other packages join through Python entry
points: a package that declares `[project.entry-points."restd.backbones"]` is imported when the registry is first read,
and registers itself as our own parts do.
"""

import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, Generic, Protocol, TypeVar

from restd.errors import ConfigError, RestdError


class Described(Protocol):
    """A name and a one-sentence summary, which every entry of a registry has."""

    @property
    def name(self) -> str:
        """The name it is chosen by."""
        ...

    @property
    def summary(self) -> str:
        """One sentence that says what it is."""
        ...


Entry = TypeVar("Entry", bound=Described)


@dataclass(eq=False)
class Registry(Generic[Entry]):
    """Entries by name.

    Args:
        kind: what an entry is, in the singular, as in errors: "backbone".
        group: entry-point group of other packages, and name in `restd list`: "backbones".
        homes: modules of ours that register entries; imported when the registry is first read, so that naming a
            registry costs nothing.

    >>> @dataclass(frozen=True)
    ... class Colour:
    ...     name: str
    ...     summary: str
    >>> colours = Registry("colour", group="colours")
    >>> colours.add(Colour("red", "Like a cherry.")).name
    'red'
    >>> colours["rde"]
    Traceback (most recent call last):
    restd.errors.ConfigError: Unknown colour 'rde'. Did you mean 'red'? Known: red.
    """

    kind: str
    group: str
    homes: tuple[str, ...] = ()
    _entries: dict[str, Entry] = field(default_factory=dict, init=False, repr=False)
    _modules: dict[str, str] = field(default_factory=dict, init=False, repr=False)
    _complete: bool = field(default=False, init=False, repr=False)
    _busy: bool = field(default=False, init=False, repr=False)
    _loading: threading.RLock = field(default_factory=threading.RLock, init=False, repr=False)

    def add(self, entry: Entry) -> Entry:
        """Register an entry; a name that is taken is an error. Returns the entry."""
        if entry.name in self._entries and self._entries[entry.name] is not entry:
            raise ConfigError(f"A {self.kind} named {entry.name!r} is registered already; choose another name.")
        self._entries[entry.name] = entry
        self._modules[entry.name] = sys._getframe(1).f_globals.get("__name__", "")
        return entry

    def remove(self, name: str) -> None:
        """Remove an entry: for tests, and to replace one of ours."""
        self._entries.pop(name, None)

    def __getitem__(self, name: str) -> Entry:
        """Look an entry up; an unknown name is an error that lists the known ones."""
        self._load()
        if name not in self._entries:
            close = get_close_matches(name, self._entries, n=1)
            guess = f" Did you mean {close[0]!r}?" if close else ""
            raise ConfigError(f"Unknown {self.kind} {name!r}.{guess} Known: {', '.join(self._entries)}.")
        return self._entries[name]

    def __contains__(self, name: object) -> bool:
        self._load()
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        """Names, ours first, in the order of `homes` and of registration."""
        self._load()
        return iter(tuple(self._entries))

    def __len__(self) -> int:
        self._load()
        return len(self._entries)

    def entries(self) -> tuple[Entry, ...]:
        """All entries, in the same order."""
        self._load()
        return tuple(self._entries.values())

    def describe(self) -> dict[str, str]:
        """Return the one-sentence summary of each entry by name: what `restd list` and the docs show."""
        return {entry.name: entry.summary for entry in self.entries()}

    def _load(self) -> None:
        if self._complete:
            return
        with self._loading:  # other threads wait for all entries
            if self._complete or self._busy:  # busy: a home reads the registry while it is being imported
                return
            self._busy = True
            try:
                self._import_all()
                self._complete = True  # not before: what failed fails again, instead of missing without a word
            finally:
                self._busy = False

    def _import_all(self) -> None:
        for home in self.homes:
            import_module(home)
        # a home that something imported before the others did not come first: names are listed in one order always
        place = {home: number for number, home in enumerate(self.homes)}
        order = sorted(self._entries, key=lambda name: place.get(self._modules[name], len(place)))
        self._entries = {name: self._entries[name] for name in order}
        for point in entry_points(group=f"restd.{self.group}"):
            try:
                point.load()
            except RestdError:
                raise
            except Exception as error:
                raise ConfigError(
                    f"The entry point {point.name!r} ({point.value}) of group restd.{self.group} cannot be loaded: "
                    f"{error}. Update or uninstall the package that declares it."
                ) from error


def deferred(module: str, name: str) -> Callable[..., Any]:
    """Name a function whose module is imported when it is first called, so that listing an entry costs nothing.

    >>> deferred("math", "sqrt")(16)
    4.0
    """

    def call(*arguments: Any, **options: Any) -> Any:
        return getattr(import_module(module), name)(*arguments, **options)

    return call
