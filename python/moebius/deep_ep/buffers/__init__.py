# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""Where DeepEP has its buffers, for callers that name these modules."""
