"""Numbers of the paper that more than one room needs; each is written here and nowhere else."""

PAPER_TEMPERATURE = 0.2
"""τ of teacher and student, meant for the authors' RQ-VAE latents."""
PAPER_ENTROPY = 0.57
"""Entropy of the level-1 teachers that the paper shows, as a share of ln K."""
