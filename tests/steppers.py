"""A stepper that is a table of numbers: log-probabilities are a function of query and prefix, and of nothing else."""

import itertools
from dataclasses import replace

import torch

from restd.models.contract import Memory
from restd.models.decode_protocol import Cache


class TableStepper:
    def __init__(self, sizes, *, seed=0, steps=None):
        self.sizes = tuple(sizes)
        self.seed = seed
        self.steps = steps  # scores are multiples of 1 / steps, so that there are ties

    def start(self, memory):
        prefixes = torch.zeros(len(memory.mask), 1, 0, dtype=torch.int64)
        numbers = memory.states[:, 0, 0].long()
        return self._scores(numbers, prefixes), Cache(((prefixes, prefixes),), ((numbers, numbers),), None)

    def step(self, cache, parents, codes):
        held = cache.past[0][0].gather(1, parents[..., None].expand(-1, -1, cache.level))
        prefixes = torch.cat([held, codes[..., None]], dim=-1)
        longer = replace(cache, past=((prefixes, prefixes),), level=cache.level + 1)
        return self._scores(cache.memory[0][0], prefixes), longer

    def _scores(self, numbers, prefixes):
        queries, beams, level = prefixes.shape
        found = torch.full((queries, beams, max(self.sizes)), -torch.inf)
        for query in range(queries):
            for beam in range(beams):
                key = hash((self.seed, int(numbers[query]), *prefixes[query, beam].tolist())) % (2**31)
                drawn = torch.randn(self.sizes[level], generator=torch.Generator().manual_seed(key))
                drawn = (drawn * self.steps).round() / self.steps if self.steps else drawn.log_softmax(-1)
                found[query, beam, : self.sizes[level]] = drawn
        return found


def memory_of(numbers):
    """One query a number."""
    states = torch.tensor(numbers, dtype=torch.float32).view(-1, 1, 1)
    return Memory(states, torch.ones(len(numbers), 1, dtype=torch.bool))


def score_of(stepper, number, sid):
    """Sum of the log-probabilities along one SID."""
    scored, cache = stepper.start(memory_of([number]))
    total = float(scored[0, 0, sid[0]])
    for code, following in itertools.pairwise(sid):
        scored, cache = stepper.step(cache, torch.zeros(1, 1, dtype=torch.int64), torch.tensor([[code]]))
        total += float(scored[0, 0, following])
    return total
