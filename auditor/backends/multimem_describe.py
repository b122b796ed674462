"""The model that a multimem arm's numbers should follow, in words, and as what ``numerics.trees`` evaluates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from auditor.backends.multimem_forms import BITS, TYPES
from auditor.backends.multimem_kernels import Variant

WIDE = {8: "binary16", 16: "binary32", 32: "binary32"}


def accumulator(variant: Variant) -> str:
    """The format that partial sums on the SM are kept in. binary32 has no wider form: there plain and wide are one."""
    return WIDE[BITS[TYPES[variant.format]]] if variant.accumulator == "wide" else variant.format


def on_the_sm(variant: Variant) -> str:
    """What the additions on the SM do."""
    kept = accumulator(variant)
    final = "" if kept == variant.format else ", one final rounding to nearest, ties to even"
    narrow = BITS[TYPES[variant.format]] == 8
    via = " by way of binary16" if narrow and kept == variant.format else ""
    saturated = "; past the largest finite value: that value" if narrow else ""
    return (
        f"a chain in the group's order, partial sums in {kept}, every addition rounded to nearest, ties to even{via}"
        f"{final}{saturated}; NaN: one code"
    )


def models(variants: Mapping[str, Variant]) -> dict[str, str]:
    """Format -> the stated model."""
    return {name: _model(variant) for name, variant in variants.items()}


def _model(variant: Variant) -> str:
    if not variant.switch:
        return on_the_sm(variant)
    if variant.pair or BITS[TYPES[variant.format]] == 32:
        return f"not stated: the switch adds ({variant.body.mnemonic})"
    return f"not stated: the switch adds ({variant.body.mnemonic}); lone elements: {on_the_sm(variant)}"


def limits(switch: bool, ranks_per_gpu: int) -> dict[str, Any]:
    """``ranks_per_gpu``, and where there is one, ``limits``: what such a run cannot show. JSON scalars."""
    if switch:
        return {"ranks_per_gpu": ranks_per_gpu}
    shared = f" One GPU served {ranks_per_gpu} ranks, so no NVLink lay between those." if ranks_per_gpu > 1 else ""
    words = f"The additions ran on the SMs of the GPUs: nothing here was added in a switch.{shared}"
    return {"ranks_per_gpu": ranks_per_gpu, "limits": words}
