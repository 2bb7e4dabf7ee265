# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from ._library import lib as _lib
from ._streams import Stream
from .errors import CommError, CudaError, Error, InvalidArgument, OutOfMemory, Unsupported
from .experts import Experts, ExpertsInfo, LoraWeights
from .quant import (
    PER_TENSOR,
    PER_TOKEN,
    QuantConfig,
    QuantOperand,
    QuantSpec,
    Quantized,
    dequantize,
    quantize,
)
from .tensors import Array, SupportsDLPack

__version__: str = _lib.version().decode()
