"""ResTD."""
