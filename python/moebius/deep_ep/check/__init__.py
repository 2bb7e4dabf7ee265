# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""Checks moebius.deep_ep on this machine: `python -m moebius.deep_ep.check --help`.

Every call is compared with a plain definition, bit by bit where bits are promised, and timed."""
