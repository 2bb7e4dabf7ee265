# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""What callers import from deep_ep.buffers.elastic."""
from ..elastic import ElasticBuffer
from ..ep_handle import EPHandle
from ..events import EventHandle, EventOverlap

__all__ = ["EPHandle", "ElasticBuffer", "EventHandle", "EventOverlap"]
