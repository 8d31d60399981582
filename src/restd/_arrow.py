"""Arrow's compute kernels for the type checker's eyes: they are made at import time, where it cannot see them."""

from typing import Any, Final

import pyarrow.compute

pc: Final[Any] = pyarrow.compute
