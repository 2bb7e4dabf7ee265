# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""Hugging Face model folders."""
from __future__ import annotations

import os
from ctypes import byref, c_int64
from dataclasses import dataclass
from typing import Optional, Union

from . import _structs as s
from ._dtypes import NAMES
from ._handles import Handle
from ._library import lib
from .errors import InvalidArgument, check, create

__all__ = ["Checkpoint", "ModelInfo", "make_model"]

Path = Union[str, "os.PathLike[str]"]


@dataclass(frozen=True)
class ModelInfo:
    """What config.json says that layers of experts need; sizes are in elements."""

    family: str
    """model_type."""
    quant_method: str
    """ "none", "fp8", "mxfp4", ..."""
    moe_layers: tuple[int, ...]
    """The layers that have experts, counted among all layers."""
    num_layers: int
    hidden: int
    intermediate: int
    num_experts: int
    topk: int
    num_shared_experts: int
    shared_intermediate: int
    dtype: Optional[str]
    """Of unquantized weights; None where config.json does not say."""


class Checkpoint(Handle):
    """A model folder with config.json and *.safetensors, which is only read.

    Raises InvalidArgument, which names file and field, and Unsupported for a family or a format
    that does not load."""

    _destroy = lib.checkpoint_destroy

    def __init__(self, directory: Path) -> None:
        if directory == "":
            raise InvalidArgument("directory is empty, expected that of a model")
        self._handle = create(lib.checkpoint_open, directory)
        info = s.ModelInfo()
        check(lib.checkpoint_get_info(self._handle, byref(info)))
        self.info = ModelInfo(
            family=info.family.decode(),
            quant_method=info.quant_method.decode(),
            moe_layers=tuple(info.moe_layers[: info.num_moe_layers]),
            num_layers=info.num_layers,
            hidden=info.hidden,
            intermediate=info.intermediate,
            num_experts=info.num_experts,
            topk=info.topk,
            num_shared_experts=info.num_shared_experts,
            shared_intermediate=info.shared_intermediate,
            dtype=None if info.dtype < 0 else NAMES[info.dtype],
        )

    def __repr__(self) -> str:
        return f"moebius.Checkpoint({self.info})"


def make_model(
    preset: str,
    directory: Path,
    *,
    num_layers: int = 0,
    quant: Optional[str] = None,
    seed: int = 0,
) -> int:
    """Writes a synthetic model with random weights and gives its bytes.

    `moebius make-model --preset list` prints the presets, and --help the formats.  num_layers 0:
    one, or all of a tiny preset."""
    written = c_int64()
    check(lib.make_model(preset, num_layers, quant, seed, directory, byref(written)))
    return written.value
