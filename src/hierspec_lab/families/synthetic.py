"""``zoo:large``: the trunk, made wider and deeper at load time, with almost the same distribution.

A model with the cost of 116 million parameters, or several billions, that predicts like the trunk:
a **synthetic cost with a real distribution**, for measuring hierarchies. Not a better model.

*Wider* (Net2Net): the residual stream is duplicated, [x] → [x, x], which does not change RMSNorm,
and so are heads and MLP units. A matrix W becomes [[A, W − A], [A', W − A']] with random A, A': on
duplicated inputs each half gives Wx. A is a random share of W rounded to the grid of W's numbers,
so A and W − A are bfloat16 numbers whenever W is one, and nothing is lost in any dtype. ``widen``
is the number of copies; it is reached by doubling.

*Deeper*: with ``deepen`` = m, trunk layer j becomes layer m·j, and each of the m − 1 layers after
it is a random residual branch whose size, relative to the residual stream there, is ``eps`` times
a calibrated constant over √(m − 1): independent branches add up in squares, so that together they
move the stream as far as the one of m = 2. At ``eps = 0`` the distribution is the trunk's. The
first m·j layers behave like the trunk's first j, so early exits are the trunk's.

Random branches are made two trunks wide and doubled from there like the trunk's own matrices. Hence
``widen`` changes the cost alone: at any ``eps`` the distribution is that of ``widen = 2``, up to
the rounding of activations.

Weights are made on the device that asks for them, in seconds for billions. A GPU's generator draws
other numbers than a CPU's for a seed: another sample of the same random branches, and the same one
for every reader on a GPU of that kind.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hierspec.lm.llama_config import of_transformers
from hierspec.lm.weights import EMBEDDING, HEAD, WeightSource
from hierspec.utils.documents import read_json

if TYPE_CHECKING:
    import torch

WIDEN, DEEPEN = 2, 2  # defaults, and the smallest values
DEFAULT_EPS = 0.1

CALIBRATION_FILE = "large.json"
FINAL_NORM = "model.norm.weight"
WRITERS = ("self_attn.o_proj.weight", "mlp.down_proj.weight")  # into the residual stream
# RMS of silu(g)·u for independent standard normal g, u: what makes the MLP branch of unit size.
GATED_RMS = 0.596


@dataclass(frozen=True, slots=True)
class Calibration:
    """Numbers that give ``eps`` the same meaning for any trunk.

    Attributes:
        scale: the factor for eps with which α(trunk, large) is about .96 at eps = .1.
        residual_rms: of the trunk's residual stream after each of its layers, on held-out text.
    """

    scale: float
    residual_rms: tuple[float, ...]

    @classmethod
    def load(cls, folder: Path, num_layers: int) -> Calibration:
        """Read the calibration in a folder; if there is none, return all ones."""
        path = folder / CALIBRATION_FILE
        if not path.is_file():
            return cls(1.0, (1.0,) * num_layers)
        return read_json(cls, path, "the calibration", ": write it again")


@dataclass(frozen=True)
class Inflated:
    """The large model as a :class:`~hierspec.lm.weights.WeightSource`, computed on demand.

    Attributes:
        device: where its tensors are made.
    """

    name: str
    config: Any
    trunk: WeightSource
    eps: float
    seed: int
    calibration: Calibration
    widen: int = WIDEN
    deepen: int = DEEPEN
    device: str = "cpu"

    @property
    def tokenizer_path(self) -> Path | None:
        return self.trunk.tokenizer_path

    def names(self) -> list[str]:
        parts = [n.split(".", 3)[3] for n in self.trunk.names() if n.startswith("model.layers.0.")]
        layers = range(self.config.num_hidden_layers)
        in_layers = [f"model.layers.{layer}.{part}" for layer in layers for part in parts]
        return [EMBEDDING, FINAL_NORM, *in_layers]

    def tensor(self, name: str) -> torch.Tensor:
        import torch

        if name in (EMBEDDING, HEAD):
            return self._of_trunk(EMBEDDING).repeat(1, self.widen)
        if name == FINAL_NORM:  # the tied head sums over all copies of a feature
            return self._of_trunk(name).repeat(self.widen) / self.widen
        if name not in self.names():
            raise KeyError(f"{self.name} has no parameter {name!r}")
        _, _, layer, part = name.split(".", 3)
        source, added = divmod(int(layer), self.deepen)
        original = self._of_trunk(f"model.layers.{source}.{part}")
        if original.dim() == 1:
            repeated = original.repeat(self.widen)
            return torch.ones_like(repeated) if added else repeated
        generator = torch.Generator(self.device).manual_seed(_seed_of(self.seed, name))
        weight, width = original, 1
        if added:
            weight, width = self._random_branch(original, part, source, generator), WIDEN
        while width < self.widen:
            weight, width = widen(weight, generator), 2 * width
        return weight

    def _of_trunk(self, name: str) -> torch.Tensor:
        return self.trunk.tensor(name).to(self.device)

    def _random_branch(
        self, original: torch.Tensor, part: str, source: int, generator: torch.Generator
    ) -> torch.Tensor:
        """Draw a dense matrix of ``WIDEN`` trunks' size, times eps if it writes the residual."""
        import torch

        rows, columns = (WIDEN * size for size in original.shape)
        size = columns**-0.5
        if part in WRITERS:
            size *= self.eps * self.calibration.scale * self.calibration.residual_rms[source]
            size /= (self.deepen - 1) ** 0.5
        if part == WRITERS[1]:
            size /= GATED_RMS
        noise = torch.randn(rows, columns, generator=generator, device=self.device)
        return noise.mul_(size).to(original.dtype)


def widen(weight: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return [[A, W − A], [A', W − A']] of shape [2o, 2i] for W [o, i], exactly, in W's dtype."""
    import torch

    exact = weight.float()
    mantissa_bits = 8 if weight.dtype == torch.bfloat16 else 24
    grid = torch.ldexp(torch.ones_like(exact), torch.frexp(exact).exponent - mantissa_bits)
    halves = []
    for _ in range(2):
        share = torch.rand(weight.shape, generator=generator, device=weight.device)
        part = torch.round(exact * share / grid) * grid
        halves.append(torch.cat((part, exact - part), dim=1))
    return torch.cat(halves).to(weight.dtype)


def inflate(
    trunk: WeightSource,
    data: Path,
    eps: float = DEFAULT_EPS,
    seed: int = 0,
    widen: int = WIDEN,
    deepen: int = DEEPEN,
    device: str = "cpu",
) -> Inflated:
    """Return the large model of a trunk.

    Args:
        data: the folder that may hold the trunk's calibration.
        widen: how many times as wide; a power of two, at least 2.
        deepen: how many times as deep; at least 2.
        device: where its weights are made.
    """
    assert widen >= WIDEN, widen
    assert widen & (widen - 1) == 0, widen
    assert deepen >= DEEPEN, deepen
    own = of_transformers(trunk.config)
    values = own.to_dict()
    for size in ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads"):
        values[size] *= widen
    layers = values["num_hidden_layers"]
    values["num_hidden_layers"] = layers * deepen
    values.pop("layer_types", None)
    config = type(own)(**values)
    name = f"zoo:large?eps={eps:g}&seed={seed}"
    if (widen, deepen) != (WIDEN, DEEPEN):
        name += f"&widen={widen}&deepen={deepen}"
    calibration = Calibration.load(data, layers)
    return Inflated(name, config, trunk, eps, seed, calibration, widen, deepen, device)


def _seed_of(seed: int, name: str) -> int:
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
