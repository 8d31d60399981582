"""Divergences of the retriever's own output from the teacher."""

import numpy as np
import pytest
import torch
from hypothesis import example, given

from restd.distill import ResidualTeacher
from restd.distill.equations import (
    full_output_kl,
    nontarget_output_kl,
)
from restd.distill.targets import Correction
from tests.test_distill_equations import level_sizes, made, seeds


@given(seeds, level_sizes)
def test_full_output_divergence(seed, sizes):
    geometry = made(seed, sizes=sizes)
    taus = torch.ones(len(sizes))
    rows = torch.arange(3)
    targets = ResidualTeacher(geometry, taus).targets(rows).values
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(targets.shape, generator=generator)
    mask = torch.rand(3, len(sizes), generator=generator) < 0.7
    expected = []
    for row in range(3):
        for level, size in enumerate(sizes):
            if mask[row, level]:
                teacher, student = targets[row, level, :size], logits[row, level, :size].softmax(-1)
                expected.append(float((torch.xlogy(teacher, teacher) - torch.xlogy(teacher, student)).sum()))
    found = full_output_kl(logits, targets, mask, geometry.codebooks.mask)
    assert float(found) == pytest.approx(np.mean(expected) if expected else 0.0, abs=1e-5)


@given(seeds, level_sizes)
@example(1, (2, 3, 2, 2))  # a teacher so sure that the others share less than 1e-12
def test_nontarget_divergence_does_not_see_the_correction(seed, sizes):
    geometry = made(seed, sizes=sizes)
    rows = torch.arange(4)
    taus = torch.ones(len(sizes))
    logits = torch.randn(4, len(sizes), max(sizes), generator=torch.Generator().manual_seed(seed)).requires_grad_()
    mask = torch.ones(4, len(sizes), dtype=torch.bool)
    stored = geometry.stored(rows)
    values = []
    for correction in (Correction(enabled=False), Correction(), Correction(floor=0.2)):
        targets = ResidualTeacher(geometry, taus, correction).targets(rows).values
        values.append(nontarget_output_kl(logits, targets, stored, mask, geometry.codebooks.mask))
    assert torch.allclose(values[0], values[1], atol=1e-4)
    assert torch.allclose(values[0], values[2], atol=1e-4)
    (gradient,) = torch.autograd.grad(values[1], logits)
    assert torch.isfinite(gradient).all()
    assert (gradient.gather(-1, stored[..., None]) == 0).all()
    assert values[1].item() >= -1e-6


@given(seeds)
def test_nontarget_divergence_by_hand(seed):
    geometry = made(seed, sizes=(4, 6))
    rows = torch.arange(3)
    targets = ResidualTeacher(geometry, torch.ones(2)).targets(rows).values
    logits = torch.randn(3, 2, 6, generator=torch.Generator().manual_seed(seed))
    stored = geometry.stored(rows)
    expected = []
    for row in range(3):
        for level, size in enumerate((4, 6)):
            others = [code for code in range(size) if code != int(stored[row, level])]
            teacher = targets[row, level, others].double()
            teacher, student = teacher / teacher.sum(), logits[row, level, others].double().softmax(-1)
            expected.append(float((teacher * (teacher / student).log()).sum()))
    found = nontarget_output_kl(logits, targets, stored, torch.ones(3, 2, dtype=torch.bool), geometry.codebooks.mask)
    assert found.item() == pytest.approx(np.mean(expected), abs=1e-4)


def test_a_single_code_has_no_alternatives():
    geometry = made(1, sizes=(1, 1))
    targets = ResidualTeacher(geometry, torch.ones(2)).targets(torch.arange(3)).values
    stored = geometry.stored(torch.arange(3))
    mask = torch.ones(3, 2, dtype=torch.bool)
    logits = torch.randn(3, 2, 1).requires_grad_()
    found = nontarget_output_kl(logits, targets, stored, mask, geometry.codebooks.mask)
    assert found.item() == 0.0
