# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""A layer of a checkpoint: 01_layer.py [MODEL_FOLDER [LAYER]].

Without a folder it makes a small synthetic model first."""
import sys
import tempfile

import numpy as np

import moebius


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        if len(sys.argv) > 1:
            folder = sys.argv[1]
        else:
            folder = scratch
            moebius.make_model("tiny", folder)
        checkpoint = moebius.Checkpoint(folder)
        print(checkpoint.info)
        layer = moebius.MoeLayer.from_checkpoint(
            checkpoint, int(sys.argv[2]) if len(sys.argv) > 2 else None
        )
    print(layer.info)

    random = np.random.default_rng(0)
    hidden = random.standard_normal((16, layer.info.hidden)).astype(np.float32)
    output = layer(hidden)
    print(f"output {output.shape} {output.dtype}, {np.abs(output).mean():.4f} on average")
    load = layer.expert_load()
    print(f"{sum(load)} selections; the busiest expert has {max(load)}")

    # The same with ids and weights of the caller's: every token to the experts 0 to K - 1.
    topk = layer.info.topk
    ids = np.tile(np.arange(topk, dtype=np.int32), (16, 1))
    weights = np.full((16, topk), 1 / topk, np.float32)
    routed = layer(hidden, ids, weights)
    assert layer.expert_load()[:topk] == [16] * topk
    assert np.isfinite(output).all() and np.isfinite(routed).all()


if __name__ == "__main__":
    main()
