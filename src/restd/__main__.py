"""`python -m restd`, which is also what `accelerate launch -m restd` and `torchrun -m restd` start."""

from restd.cli import main

main()
