"""The data type where nobody says one: by the processor; obeyed where somebody does."""

import pytest
import torch
from tiny_models import save_tiny

from hierspec.lm import dtypes
from hierspec.lm.backend import backend_of
from hierspec.lm.load import load
from hierspec.lm.native import library
from hierspec.lm.tabular import TabularModel
from hierspec.lm.trunk.trunk import Trunk

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.fixture
def processor(monkeypatch):
    """Makes this processor one with the given features."""

    def has(*features):
        monkeypatch.setattr(dtypes, "processor_features", lambda: frozenset(features))
        dtypes.is_native.cache_clear()

    yield has
    dtypes.is_native.cache_clear()


@pytest.mark.parametrize(
    ("features", "bfloat16", "float16"),
    [
        (("avx2",), torch.float32, torch.float32),
        (("avx2", "avx512f", "avx512bw"), torch.float32, torch.float32),
        (("avx512f", "avx512_bf16"), torch.bfloat16, torch.float32),
        (("amx_bf16", "avx512_fp16"), torch.bfloat16, torch.float16),
        (("asimd", "asimdhp", "bf16"), torch.bfloat16, torch.float16),
    ],
)
def test_half_precision_is_widened_where_the_processor_cannot_compute_in_it(
    processor, features, bfloat16, float16
):
    processor(*features)
    assert dtypes.default_dtype(torch.bfloat16, CPU) == bfloat16
    assert dtypes.default_dtype(torch.float16, CPU) == float16
    assert dtypes.default_dtype(torch.float32, CPU) == torch.float32
    assert dtypes.default_dtype(torch.float64, CPU) == torch.float64
    assert dtypes.default_dtype(torch.bfloat16, CUDA) == torch.bfloat16
    said = "float32: this processor has no" if bfloat16 == torch.float32 else "bfloat16: "
    assert dtypes.describe().startswith(said)


@pytest.mark.parametrize("backend", ["lean", "hf"])
def test_a_model_follows_unless_a_dtype_is_asked_for(processor, tmp_path, backend):
    folder = save_tiny("llama", tmp_path, dtype=torch.bfloat16)
    processor("avx2")
    assert load(folder, backend=backend).weight_dtype == torch.float32
    assert load(folder, torch.bfloat16, backend=backend).weight_dtype == torch.bfloat16
    processor("avx512_bf16")
    model = load(folder, backend=backend)
    assert model.weight_dtype == torch.bfloat16
    assert dtypes.weight_dtype_name(Trunk(model).view()) == "bfloat16"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_in_the_kernels_it_stays_as_it_is_stored(processor, tmp_path, monkeypatch, dtype):
    folder = save_tiny("llama", tmp_path, dtype=dtype)
    processor("avx2")
    if (kernels := library.load()) is None:
        pytest.skip(library.why_none())
    assert load(folder).weight_dtype == dtype
    assert load(folder, backend="deterministic").weight_dtype == dtype
    name = str(dtype).removeprefix("torch.")
    assert dtypes.describe(dtype, kernels is not None).startswith(f"{name} in the compiled kernels")
    monkeypatch.setenv("HIERSPEC_KERNELS", "0")
    library.load.cache_clear()
    try:
        assert load(folder).weight_dtype == torch.float32
    finally:
        library.load.cache_clear()


def test_a_table_has_no_weights():
    table = TabularModel.random(3, 1, torch.Generator())
    assert backend_of(table) is None
    assert dtypes.weight_dtype_name(table) == ""
