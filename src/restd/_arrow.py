"""Arrow's compute functions as `Any`: they are made at import time, where a type checker cannot see them."""

from typing import Any, Final

import pyarrow.compute

pc: Final[Any] = pyarrow.compute
