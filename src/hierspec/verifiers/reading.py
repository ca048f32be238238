"""Numbers read off laws without padding, copying or touching rows that do not matter."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..laws import DenseLaws, Laws, MixedLaws


def chosen_probabilities(
    drafts: Sequence[tuple[Sequence[int], Laws, Laws]],
) -> list[tuple[list[float], list[float]]]:
    """p_i(x_i) and q_i(x_i) of every draft (tokens, p, q), read off the device at once."""
    gathered: list[torch.Tensor] = []
    plan: list[list[list[float] | int]] = []  # per law: numbers known already, or how many to read
    for tokens, p, q in drafts:
        for laws in (p, q):
            pieces: list[list[float] | int] = []
            start = 0
            for part in laws.parts if isinstance(laws, MixedLaws) else (laws,):
                mine = tokens[start : start + len(part)]
                start += len(mine)
                if not mine:
                    continue
                if isinstance(part, DenseLaws) and part.probs.device.type == "cpu":
                    # A few numbers: NumPy reads them in a tenth of what a gather costs.
                    rows, width = part.probs.numpy(), part.width
                    pieces.append(
                        [float(rows[i, t]) if t < width else 0.0 for i, t in enumerate(mine)]
                    )
                elif isinstance(part, DenseLaws) and max(mine) < part.width:
                    at = torch.tensor(mine, device=part.probs.device).unsqueeze(-1)
                    gathered.append(part.probs.gather(-1, at))
                    pieces.append(len(mine))
                else:  # one-hot, or a token beyond a narrower vocabulary
                    pieces.append([part.prob(i, token) for i, token in enumerate(mine)])
            plan.append(pieces)
    values: list[float] = []
    if gathered:
        like = gathered[0]
        # float64 holds every float32 exactly; one device, because laws may come from several
        whole = torch.cat([g.to(like.device, torch.float64) for g in gathered])
        values = whole.squeeze(-1).tolist()
    out, at_value = [], 0
    for pieces in plan:
        numbers: list[float] = []
        for piece in pieces:
            if isinstance(piece, int):
                numbers += values[at_value : at_value + piece]
                at_value += piece
            else:
                numbers += piece
        out.append(numbers)
    return list(zip(out[::2], out[1::2], strict=True))


def row_at(laws: Laws, i: int) -> torch.Tensor:
    """Row i, [width]."""
    part, i = laws.at(i) if isinstance(laws, MixedLaws) else (laws, i)
    if isinstance(part, DenseLaws):
        return part.probs[i]
    one = part.rows(i, i + 1)
    return one.dense(one.width)[0]


def residual(p: Laws, q: Laws, i: int, w: float) -> torch.Tensor:
    """max(w·p − q, 0) at row i, [width of p]; what q says beyond p's vocabulary cannot matter."""
    row = row_at(p, i)
    part, i = q.at(i) if isinstance(q, MixedLaws) else (q, i)
    if isinstance(part, DenseLaws):
        other = part.probs[i].to(row)
        missing = row.shape[0] - other.shape[0]
        if missing:  # padding by a negative number cuts
            other = torch.nn.functional.pad(other, (0, missing))
        return torch.sub(row if w == 1.0 else row * w, other).clamp_(min=0.0)
    out = row * w
    token = part.ids[i]
    if token < out.shape[0]:
        out[token] = (out[token] - 1.0).clamp(min=0.0)
    return out


def stacked(rows: list[torch.Tensor]) -> torch.Tensor:
    """[n, V] of rows that may differ in width."""
    if len(rows) == 1:
        return rows[0].unsqueeze(0)
    width = max(row.shape[0] for row in rows)
    if any(row.shape[0] < width for row in rows):
        pad = torch.nn.functional.pad
        rows = [pad(row, (0, width - row.shape[0])) for row in rows]
    return torch.stack([row.to(rows[0]) for row in rows])
