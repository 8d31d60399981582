"""One artefact in two places: hard links where the disk has them, copies elsewhere."""

import os
import shutil
from pathlib import Path

from restd.artifacts.swap import recover, remove_leftovers, replace_folder, temporary_folder


def link_artifact(source: Path, target: Path) -> None:
    """Let `target` be the artefact `source`, whole or not at all; files of artefacts never change, so links are safe.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as name:
    ...     source = Path(name) / "one"
    ...     source.mkdir()
    ...     _ = (source / "file").write_text("same")
    ...     link_artifact(source, Path(name) / "other")
    ...     (Path(name) / "other" / "file").read_text()
    'same'
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(target)
    recover(target)
    new = temporary_folder(target)
    new.mkdir()
    try:
        for path in sorted(source.iterdir()):
            try:
                os.link(path, new / path.name)
            except OSError:  # another disk, or a file system without links
                shutil.copy2(path, new / path.name)
        replace_folder(new, target)
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise
