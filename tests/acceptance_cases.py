"""Draft models with acceptance heads, and levels that ask them."""

import shutil

import torch
from loading import hierarchy_of
from transformers import AutoConfig


def with_acceptance_head(model, folder):
    """A copy of a model with a head of random numbers in its folder."""
    from hierspec_lab.acceptance.files import FILE, write
    from hierspec_lab.acceptance.head import AcceptanceHead

    shutil.copytree(model, folder)
    size = AutoConfig.from_pretrained(model).hidden_size
    head = AcceptanceHead(size, 1)
    torch.nn.init.normal_(head.out.weight, generator=torch.Generator().manual_seed(0))
    info = {"kind": "acceptance", "model": "draft", "target": "target"}
    info |= {"hidden_size": size, "depth": 1}
    write(folder / FILE, head, info)
    return str(folder)


SHIPPED = "zoo:mid-acceptance"


def level(head=SHIPPED, **options):
    window = {"kind": "acceptance", "head": str(head), **options}
    model = {"method": "draft_model", "model": "zoo:mid"}
    return {**model, "num_speculative_tokens": 8, "window": window}


def hierarchy(*levels):
    target = {"model": "zoo:trunk", "dtype": "float32"}
    return hierarchy_of({"target": target, "levels": list(levels)})
