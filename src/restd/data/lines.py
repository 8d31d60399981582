"""Text files line by line, plain or compressed, with errors that name the file and the line."""

import io
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from restd.errors import DataError

BYTE_ORDER_MARK: Final = "\ufeff"


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line number from 1, line without its end) of a UTF-8 file; `.gz`, `.bz2` and `.zst` are decompressed.

    Only a line feed ends a line: JSON and TSV texts may hold the other characters Python would also break at.
    """
    number = 0
    try:
        with pa.input_stream(str(path), compression="detect") as raw:
            for number, encoded in enumerate(io.BufferedReader(raw), start=1):  # Arrow's own stream has no lines
                line = encoded.decode("utf-8")
                yield number, (line.removeprefix(BYTE_ORDER_MARK) if number == 1 else line).rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}, line {number}: byte {error.start + 1} is not UTF-8; save the file as UTF-8."
        ) from error
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path} cannot be read ({error}); give the path of a complete, readable file.") from error


def json_lines(
    path: Path, *, parse: Callable[[str], Any] = json.loads, replace_surrogates: bool = False
) -> Iterator[tuple[int, dict[str, Any]]]:
    r"""Yield (line number, object) of a file with one JSON object per line; blank lines are skipped.

    Args:
        path: plain or compressed, as in `numbered_lines`.
        parse: turns a line into an object, for files that are not quite JSON.
        replace_surrogates: put a question mark for half a character (a lone surrogate), which no table can store.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "items.jsonl"
    ...     _ = path.write_text('{"id": 1}\n\n{"id": 2}\n')
    ...     list(json_lines(path))
    [(1, {'id': 1}), (3, {'id': 2})]
    """
    for number, line in numbered_lines(path):
        if not line.strip():
            continue
        try:
            record = parse(line)
            if replace_surrogates and "\\u" in line:
                record = json.loads(json.dumps(record, ensure_ascii=False).encode("utf-8", "replace"))
        except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError) as error:
            reason = error.msg if isinstance(error, json.JSONDecodeError | SyntaxError) else error
            raise DataError(
                f"{path}, line {number}: not a JSON object ({reason}); write one object per line."
            ) from error
        if not isinstance(record, dict):
            kind = type(record).__name__
            raise DataError(f"{path}, line {number}: not a JSON object (type {kind}); write one object per line.")
        yield number, record


def required_id(record: Mapping[str, Any], key: str, *, path: Path, number: int) -> str:
    """Return an id that a record must have, as text; whole numbers are accepted."""
    value = record.get(key)
    text = str(value).strip() if isinstance(value, str | int) and not isinstance(value, bool) else ""
    if not text:
        raise DataError(
            f"{path}, line {number}: {key!r} is {value!r:.40}, but an id is required; the keys are: "
            f"{', '.join(map(str, record))}."
        )
    return text
