"""Numbers rounded to few bits: which codes, on which grid.

Of 32 inputs an output's weights share a grid. To nearest each weight is rounded by itself. Where
the second moments of the inputs are known, the weights of one input after the other are rounded,
and those of inputs still to come make up for the error as far as inputs occur together: GPTQ
(Frantar et al. 2023, arXiv 2210.17323, Algorithm 1).
"""

from __future__ import annotations

import torch

from .formats import GROUP, Format
from .gguf_blocks import Codes

_FITTED = 4  # bits of a code up to which steps are fitted: with more it changes little
_PARTS = (1.0, 0.9, 0.8, 0.7)  # of a group's range; those beyond are clipped
_ROUNDS = 2  # of codes for steps and steps for codes
_DAMPING = 0.01  # of the inputs' mean square, added to that of each


def round_to(weight: torch.Tensor, form: Format, moments: torch.Tensor | None = None) -> Codes:
    """Round a matrix [out, in] to codes with a step (and a lowest value) for 32 inputs.

    Args:
        form: none that only files have.
        moments: mean of x xᵀ over its inputs x, float32 [in, in]; ``None``: to nearest.
    """
    assert not form.units
    assert not form.table
    if moments is not None:
        return _round_in_turn(weight, form, _inverse_root(moments))
    # The last group is padded with its own last weight, which widens no range.
    padded = weight.float()
    if padding := -weight.size(1) % GROUP:
        padded = torch.cat([padded, padded[:, -1:].expand(-1, padding)], 1)
    groups = padded.view(len(weight), -1, GROUP)
    steps, lowest, start = _grid(groups, form, groups.new_ones(GROUP))
    codes = _codes(groups, steps, start, form).to(torch.uint8).flatten(1)
    return Codes(codes[:, : weight.size(1)], steps, lowest)


def _inverse_root(moments: torch.Tensor) -> torch.Tensor:
    """Return the upper triangular U with Uᵀ U = (moments + damping)⁻¹, float32 [in, in]."""
    damped = moments.double()
    damped.diagonal().add_(_DAMPING * damped.diagonal().mean().clamp_min(1e-20))
    # Of M = R Rᵀ with an upper R, which a lower one is in reversed order, U is R⁻¹.
    lower = torch.linalg.cholesky(damped.flip(0, 1))
    unit = torch.eye(len(lower), dtype=lower.dtype, device=lower.device)
    return torch.linalg.solve_triangular(lower, unit, upper=False).flip(0, 1).float()


def _round_in_turn(weight: torch.Tensor, form: Format, root: torch.Tensor) -> Codes:
    """Round a matrix [out, in] input by input; see :func:`_inverse_root` for ``root``."""
    rest = weight.float().T.clone(memory_format=torch.contiguous_format)
    codes = torch.empty_like(rest, dtype=torch.uint8)
    matters = root.diagonal() ** -2  # the mean square of what later inputs do not say of one
    grids: list[tuple[torch.Tensor, torch.Tensor | None]] = []
    for first in range(0, len(rest), GROUP):
        end = min(first + GROUP, len(rest))
        group = rest[first:end].T.unsqueeze(1)
        steps, lowest, start = _grid(group, form, matters[first:end])
        grids.append((steps, lowest))
        step, start = steps[:, 0].float().clamp_min(1e-20), start[:, 0].float()
        errors = torch.empty_like(rest[first:end])
        for i, row in enumerate(range(first, end)):
            code = (rest[row] - start).div_(step).round_().clamp_(0, form.most)
            codes[row] = code
            error = rest[row] - code.mul_(step).add_(start)
            errors[i] = error.div_(root[row, row])
            rest[row + 1 : end].addr_(root[row, row + 1 : end], errors[i], alpha=-1)
        rest[end:].addmm_(root[first:end, end:].T, errors, alpha=-1)
    steps = torch.cat([steps for steps, _ in grids], 1)
    lowest = torch.cat([low for _, low in grids if low is not None], 1) if form.lowest else None
    return Codes(codes.T.contiguous(), steps, lowest)


def _grid(
    groups: torch.Tensor, form: Format, weights: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
    """Return steps, lowest values and the number of code 0 of groups [out, n, g], each [out, n].

    Args:
        weights: of squared errors, [g].
    """
    if form.lowest:
        steps, lowest = _steps_and_lowest(groups, form, weights / weights.sum())
        return steps, lowest, lowest
    steps = (groups.abs().amax(2) / (form.most - form.zero)).half()
    return steps, None, -form.zero * steps.float()


def _steps_and_lowest(
    groups: torch.Tensor, form: Format, weights: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the float16 step and lowest value of each group [out, n, g].

    Those of the group's range or, in few bits, of some part of it: of each part its codes, then the
    step and lowest value with the least squared error for these codes, twice over, where that is
    less. ``weights`` of the errors add up to 1.
    """
    low, high = groups.aminmax(dim=2)
    steps, lowest = ((high - low) / form.most).half(), low.half()
    if form.bits > _FITTED:
        return steps, lowest
    middle, half = (low + high) / 2, (high - low) / 2
    mean = groups @ weights
    centred = groups - mean[..., None]
    least = _squared_error(groups, steps, lowest, form, weights)
    for part in _PARTS:
        step, start = (2 * part / form.most) * half, middle - part * half
        for _ in range(_ROUNDS):
            codes = _codes(groups, step, start, form)
            mean_code = codes @ weights
            codes -= mean_code[..., None]
            step = (codes * centred) @ weights / (codes.square_() @ weights).clamp_min_(1e-20)
            start = mean - step * mean_code
        pair = step.half(), start.half()
        error = _squared_error(groups, *pair, form, weights)
        better = error < least
        least = torch.where(better, error, least)
        steps = torch.where(better, pair[0], steps)
        lowest = torch.where(better, pair[1], lowest)
    return steps, lowest


def _codes(
    groups: torch.Tensor, steps: torch.Tensor, start: torch.Tensor, form: Format
) -> torch.Tensor:
    steps = steps.float().clamp_min(1e-20)[..., None]
    return (groups - start.float()[..., None]).div_(steps).round_().clamp_(0, form.most)


def _squared_error(
    groups: torch.Tensor,
    steps: torch.Tensor,
    lowest: torch.Tensor,
    form: Format,
    weights: torch.Tensor,
) -> torch.Tensor:
    rounded = _codes(groups, steps, lowest, form).mul_(steps.float()[..., None])
    return rounded.add_(lowest.float()[..., None]).sub_(groups).square_() @ weights
