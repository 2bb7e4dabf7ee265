# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""The name deep_ep for moebius.deep_ep, which is what an import of this package gives."""
import sys

import moebius.deep_ep

del sys.modules[__name__]  # install() refuses to replace a deep_ep that is there
moebius.deep_ep.install()
sys.modules[__name__] = moebius.deep_ep
