"""The learning rate over a run."""

import math


def learning_rate(update: int, *, peak: float, warm_up: int, total: int) -> float:
    """Linear warm-up from zero to `peak`, then half a cosine to zero.

    `transformers.get_cosine_schedule_with_warmup` is the same curve, and is not used here: its rates are a base rate
    times a factor, which rounds differently (the recorded runs would not be reproduced bit by bit), and a `LambdaLR`
    keeps a state of its own, where this one needs no checkpoint because it depends on the update alone.

    >>> [round(learning_rate(update, peak=1.0, warm_up=2, total=6), 3) for update in range(6)]
    [0.0, 0.5, 1.0, 0.854, 0.5, 0.146]
    """
    if update < warm_up:
        return peak * update / warm_up
    progress = (update - warm_up) / max(total - warm_up, 1)
    return peak * 0.5 * (1 + math.cos(math.pi * progress))
