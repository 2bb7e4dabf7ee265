# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""What callers import from deep_ep.utils.event."""
from ..events import EventHandle, EventOverlap

__all__ = ["EventHandle", "EventOverlap"]
