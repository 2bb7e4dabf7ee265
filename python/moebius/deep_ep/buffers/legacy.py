# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""What callers import from deep_ep.buffers.legacy."""
from ..buffer import Buffer
from ..config import Config
from ..events import EventHandle, EventOverlap

__all__ = ["Buffer", "Config", "EventHandle", "EventOverlap"]
