"""python -m tests.killed_studies FOLDER OUT : the comparison that tests kill and start again."""

import sys
from pathlib import Path

from restd.experiments import compare
from tests.studies import comparison

if __name__ == "__main__":
    folder, out = map(Path, sys.argv[1:])
    compare(comparison(folder, out, objectives=("base", "restd", "full-output-kd")), notify=lambda sentence: None)
