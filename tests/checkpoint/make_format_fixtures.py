#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""Makes tests/fixtures/formats: small checkpoints in every stored format, and what they stand for.

Each format is defined here once more, from its public description and without a line of the
loader: random codes, scales and zero points are chosen, their values are computed by the format's
formula, and then they are packed as publishers pack them.  A folder NAME has expected.safetensors
(w1 [E, 2I, H] and w2 [E, H, I] in f32, gate rows before up rows) and a checkpoint for each family.

    python3 tests/checkpoint/make_format_fixtures.py [FOLDER]

Sources: AutoGPTQ and GPTQModel (qlinear pack), AutoAWQ (WQLinear_GEMM), compressed-tensors
(pack_to_int32, nvfp4 and mxfp4 packing), ModelOpt's export, transformers (finegrained_fp8,
fbgemm_fp8, mxfp4), DeepSeek-V3's weight conversion.
"""

import json
import pathlib
import struct
import sys

import numpy as np

E, H, I = 2, 64, 32
E4M3 = np.array([((-1.0) ** (c >> 7)) * (2.0 ** ((c >> 3 & 15) - 7) * (1 + (c & 7) / 8)
                 if c >> 3 & 15 else 2.0 ** -6 * (c & 7) / 8) for c in range(256)], np.float32)
E2M1 = np.array([0, .5, 1, 1.5, 2, 3, 4, 6, -0.0, -.5, -1, -1.5, -2, -3, -4, -6], np.float32)


# -- safetensors -------------------------------------------------------------------------------

NAMES = {"f4": "F32", "f2": "F16", "i4": "I32", "i8": "I64", "i1": "I8", "u1": "U8"}


class Stored:
    """Bytes under a dtype that numpy lacks."""

    def __init__(self, data, dtype, shape=None):
        self.data, self.dtype = np.ascontiguousarray(data), dtype
        self.shape = list(self.data.shape if shape is None else shape)


def e4m3(codes):
    return Stored(codes.astype(np.uint8), "F8_E4M3")


def e8m0(codes):
    return Stored(codes.astype(np.uint8), "F8_E8M0")


def bf16(values):
    """Exact bf16 values as they are stored."""
    return Stored((values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16), "BF16")


def save(path, tensors):
    header, blobs, at = {"__metadata__": {"format": "pt"}}, [], 0
    for name, t in sorted(tensors.items()):
        if not isinstance(t, Stored):
            t = np.asarray(t)
            t = Stored(t, NAMES[t.dtype.str[1:]], t.shape)
        blob = t.data.tobytes()
        header[name] = {"dtype": t.dtype, "shape": t.shape, "data_offsets": [at, at + len(blob)]}
        blobs.append(blob)
        at += len(blob)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blobs))


# -- numbers -----------------------------------------------------------------------------------

def f16_scales(rng, shape):
    return rng.uniform(0.01, 0.03, shape).astype(np.float16)


def bf16_scales(rng, shape):
    bits = rng.uniform(0.01, 0.03, shape).astype(np.float32).view(np.uint32) & 0xffff0000
    return bits.view(np.float32)


def f32_scales(rng, shape):
    return rng.uniform(0.01, 0.03, shape).astype(np.float32)


def spread(groups, shape, unit):
    """groups [n/unit0, k/unit1] as a matrix [n, k]."""
    rows = np.arange(shape[0]) // unit[0]
    cols = np.arange(shape[1]) // unit[1]
    return groups[rows][:, cols]


def pack_words(codes, bits):
    """codes [n, k] to i32 [n, k * bits / 32]: the first of a word lowest."""
    per_word = 32 // bits
    n, k = codes.shape
    words = np.zeros((n, k // per_word), np.uint64)
    for i in range(per_word):
        words |= codes[:, i::per_word].astype(np.uint64) << np.uint64(bits * i)
    return words.astype(np.uint32).view(np.int32)


def pack_pairs(codes):
    """Two codes of 4 bits to a byte, the first one low."""
    return (codes[:, 0::2] | codes[:, 1::2] << 4).astype(np.uint8)


def fp8_codes(rng, n, k):
    codes = rng.integers(0, 256, (n, k))
    return np.where((codes & 127) == 127, codes - 1, codes)  # 127 is NaN


# -- one module: returns its tensors by suffix, and its values [n, k] -----------------------------

def fp8_block(suffix, make_scale, block):
    def module(rng, n, k):
        codes = fp8_codes(rng, n, k)
        shape = (-(-n // block[0]), -(-k // block[1]))
        scale, stored = make_scale(rng, shape)
        return ({".weight": e4m3(codes), suffix: stored},
                E4M3[codes] * spread(scale, (n, k), block))
    return module


def plain_scale(rng, shape):
    scale = f32_scales(rng, shape)
    return scale, scale


def bf16_scale(rng, shape):
    scale = bf16_scales(rng, shape)
    return scale, bf16(scale)


def ue8m0_scale(as_u8):
    def scale(rng, shape):
        codes = rng.integers(118, 124, shape)
        return (2.0 ** (codes - 127.0)).astype(np.float32), \
            codes.astype(np.uint8) if as_u8 else e8m0(codes)
    return scale


def blocks_of_four_dims(rng, n, k):
    """ModelOpt FP8_PB_WO: scales [n/128, 1, k/128, 1]."""
    codes = fp8_codes(rng, n, k)
    scale = f32_scales(rng, (1, 1))
    return ({".weight": e4m3(codes), ".weight_scale": scale.reshape(1, 1, 1, 1)},
            E4M3[codes] * scale[0, 0])


def fp8_channel(make_scale, flat):
    def module(rng, n, k):
        codes = fp8_codes(rng, n, k)
        scale, stored = make_scale(rng, (n, 1))
        if flat:
            stored = scale.reshape(n)
        return {".weight": e4m3(codes), ".weight_scale": stored}, E4M3[codes] * scale
    return module


def fp8_tensor(scale_suffix, input_suffix, shape):
    def module(rng, n, k):
        codes = fp8_codes(rng, n, k)
        scale = f32_scales(rng, shape)
        tensors = {".weight": e4m3(codes), scale_suffix: scale}
        if input_suffix:
            # Inputs of up to 0.06 are represented, and intermediates of up to 16.
            tensors[input_suffix] = np.full(shape, (0.06 if k == H else 16) / 448, np.float32)
        return tensors, E4M3[codes] * scale.reshape(())
    return module


def int_channel(group, symmetric):
    """compressed-tensors int-quantized: value = (q - zero) * scale."""
    def module(rng, n, k):
        codes = rng.integers(-128, 128, (n, k))
        g = group or k
        scale = bf16_scales(rng, (n, k // g))
        zero = np.zeros((n, k // g), np.int64) if symmetric else rng.integers(-9, 9, (n, k // g))
        tensors = {".weight": codes.astype(np.int8), ".weight_scale": bf16(scale)}
        if not symmetric:
            tensors[".weight_zero_point"] = zero.astype(np.int8)
        values = (codes - spread(zero, (n, k), (1, g))).astype(np.float32)
        return tensors, values * spread(scale, (n, k), (1, g))
    return module


def ct_packed(bits, group, symmetric):
    """compressed-tensors pack-quantized: codes and zero points are offset by half their range; words
    hold codes along k, and zero points along n."""
    def module(rng, n, k):
        half = 1 << (bits - 1)
        g = group or k
        codes = rng.integers(-half, half, (n, k))
        scale = bf16_scales(rng, (n, k // g))
        zero = np.zeros((n, k // g), np.int64) if symmetric \
            else rng.integers(-half // 2, half // 2, (n, k // g))
        tensors = {".weight_packed": pack_words(codes + half, bits),
                   ".weight_scale": bf16(scale),
                   ".weight_shape": np.array([n, k], np.int64)}
        if not symmetric:
            tensors[".weight_zero_point"] = np.ascontiguousarray(
                pack_words((zero + half).T, bits).T)
        values = (codes - spread(zero, (n, k), (1, g))).astype(np.float32)
        return tensors, values * spread(scale, (n, k), (1, g))
    return module


def gptq(bits, group, symmetric, version, order=None):
    """qweight [k * bits / 32, n] packs along k; qzeros [k/g, n * bits / 32] along n, one less in
    version 1; g_idx [k] names the group of a column."""
    def module(rng, n, k):
        g = group or k
        groups = k // g
        codes = rng.integers(0, 1 << bits, (n, k))
        scale = f16_scales(rng, (groups, n))
        low, high = (1, 1 << bits) if version == 1 else (0, (1 << bits) - 1)
        zero = np.full((groups, n), 1 << (bits - 1)) if symmetric \
            else rng.integers(low, high, (groups, n))
        g_idx = np.arange(k) // g
        if order is not None:
            g_idx = np.array(order(groups))[g_idx]
        tensors = {
            ".qweight": np.ascontiguousarray(pack_words(codes, bits).T),
            ".scales": scale,
            ".qzeros": pack_words(zero - (1 if version == 1 else 0), bits),
            ".g_idx": g_idx.astype(np.int32),
        }
        values = np.empty((n, k), np.float32)
        for column in range(k):
            of = g_idx[column]
            values[:, column] = (codes[:, column] - zero[of]).astype(np.float32) * \
                scale[of].astype(np.float32)
        return tensors, values
    return module


def awq(group):
    """Words hold 8 outputs of one input, in the order 0 2 4 6 1 3 5 7."""
    order = [0, 2, 4, 6, 1, 3, 5, 7]

    def pack(matrix):  # [rows, n] -> [rows, n / 8]
        out = np.zeros((matrix.shape[0], matrix.shape[1] // 8), np.uint32)
        for i, source in enumerate(order):
            out |= matrix[:, source::8].astype(np.uint32) << np.uint32(4 * i)
        return out.view(np.int32)

    def module(rng, n, k):
        codes = rng.integers(0, 16, (k, n))
        zero = rng.integers(0, 16, (k // group, n))
        scale = f16_scales(rng, (k // group, n))
        rows = np.arange(k) // group
        values = (codes - zero[rows]).astype(np.float32) * scale[rows].astype(np.float32)
        return {".qweight": pack(codes), ".qzeros": pack(zero), ".scales": scale}, values.T
    return module


def mxfp4(weight_suffix, scale_suffix, as_u8=True, signed=False):
    def module(rng, n, k):
        codes = rng.integers(0, 16, (n, k))
        scale = rng.integers(118, 124, (n, k // 32))
        packed = pack_pairs(codes)
        return ({weight_suffix: packed.view(np.int8) if signed else packed,
                 scale_suffix: scale.astype(np.uint8) if as_u8 else e8m0(scale)},
                E2M1[codes] * (2.0 ** (spread(scale, (n, k), (1, 32)) - 127.0)).astype(np.float32))
    return module


def mxfp8(scale_suffix, as_u8):
    def module(rng, n, k):
        codes = fp8_codes(rng, n, k)
        scale = rng.integers(114, 120, (n, k // 32))
        return ({".weight": e4m3(codes),
                 scale_suffix: scale.astype(np.uint8) if as_u8 else e8m0(scale)},
                E4M3[codes] * (2.0 ** (spread(scale, (n, k), (1, 32)) - 127.0)).astype(np.float32))
    return module


def nvfp4(packed, has_inputs):
    """ModelOpt: value = q * sf * weight_scale_2.  compressed-tensors: q * sf / weight_global_scale."""
    def module(rng, n, k):
        codes = rng.integers(0, 16, (n, k))
        sf = rng.integers(0x30, 0x78, (n, k // 16))
        factor = np.float32(rng.uniform(1e-4, 2e-4))
        inputs = np.float32(rng.uniform(1e-3, 2e-3))
        tensors = {".weight_packed" if packed else ".weight": pack_pairs(codes),
                   ".weight_scale": e4m3(sf)}
        if packed:
            tensors[".weight_global_scale"] = np.array([1 / factor], np.float32)
            factor = np.float32(1) / tensors[".weight_global_scale"][0]
            if has_inputs:
                tensors[".input_global_scale"] = np.array([1 / inputs], np.float32)
        else:
            tensors[".weight_scale_2"] = np.array(factor, np.float32)
            if has_inputs:
                tensors[".input_scale"] = np.array(inputs, np.float32)
        return tensors, E2M1[codes] * (spread(E4M3[sf], (n, k), (1, 16)) * factor)
    return module


def plain(rng, n, k):
    values = (rng.standard_normal((n, k)) * 0.1).astype(np.float32)
    values = (values.view(np.uint32) & 0xffff0000).view(np.float32)
    return {".weight": bf16(values)}, values


# -- quantization_config ------------------------------------------------------------------------

def ct(fmt, weights, acts=None, ignore=("lm_head", "re:.*gate$"), **more):
    return {"quant_method": "compressed-tensors", "format": fmt, "ignore": list(ignore),
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights,
                                          "input_activations": acts}}, **more}


def weights(bits, kind, strategy, **more):
    return {"num_bits": bits, "type": kind, "strategy": strategy, "symmetric": True,
            "dynamic": False, **more}


TOKEN = {"num_bits": 8, "type": "float", "strategy": "token", "symmetric": True, "dynamic": True}
STATIC = {**TOKEN, "strategy": "tensor", "dynamic": False}
GROUP = {**TOKEN, "strategy": "group", "group_size": 16}
LOCAL = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16,
         "symmetric": True, "dynamic": "local"}
FP8 = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic"}


def gptq_config(**more):
    return {"quant_method": "gptq", "bits": 4, "group_size": 16, "desc_act": False, "sym": True,
            "lm_head": False, "damp_percent": 0.01, **more}


FORMATS = {
    "ct_fp8_channel": (ct("float-quantized", weights(8, "float", "channel"), TOKEN),
                       fp8_channel(bf16_scale, False)),
    "ct_fp8_tensor": (ct("float-quantized", weights(8, "float", "tensor"), STATIC),
                      fp8_tensor(".weight_scale", ".input_scale", (1,))),
    "ct_fp8_block": (ct("float-quantized", weights(8, "float", "block", block_structure=[32, 16]),
                        GROUP), fp8_block(".weight_scale", bf16_scale, (32, 16))),
    "ct_int4": (ct("pack-quantized", weights(4, "int", "group", group_size=32)),
                ct_packed(4, 32, True)),
    "ct_int4_channel": (ct("pack-quantized", weights(4, "int", "channel")),
                        ct_packed(4, None, True)),
    "ct_int4_zeros": (ct("pack-quantized", {**weights(4, "int", "group", group_size=16,
                                                      actorder="static"), "symmetric": False}),
                      ct_packed(4, 16, False)),
    "ct_int8_packed": (ct("pack-quantized", {**weights(8, "int", "group", group_size=32),
                                             "symmetric": False}), ct_packed(8, 32, False)),
    "ct_int8": (ct("int-quantized", weights(8, "int", "channel"), {**TOKEN, "type": "int"}),
                int_channel(None, True)),
    "ct_int8_zeros": (ct("int-quantized", {**weights(8, "int", "channel"), "symmetric": False}),
                      int_channel(None, False)),
    "gptq": (gptq_config(checkpoint_format="gptq"), gptq(4, 16, True, 1)),
    "gptq_zeros": (gptq_config(sym=False, group_size=32), gptq(4, 32, False, 1)),
    "gptq_v2": (gptq_config(sym=False, checkpoint_format="gptq_v2"), gptq(4, 16, False, 2)),
    "gptq_int8": (gptq_config(bits=8), gptq(8, 16, True, 1)),
    "gptq_int8_zeros": (gptq_config(bits=8, sym=False, checkpoint_format="gptq_v2"),
                        gptq(8, 16, False, 2)),
    "gptq_rows": (gptq_config(group_size=-1, desc_act=True), gptq(4, None, True, 1)),
    "gptq_order": (gptq_config(desc_act=True, sym=False),
                   gptq(4, 16, False, 1, lambda groups: np.roll(np.arange(groups), 1))),
    "awq": ({"quant_method": "awq", "bits": 4, "group_size": 16, "version": "gemm",
             "zero_point": True, "modules_to_not_convert": ["gate"]}, awq(16)),
    "fp8_block": ({**FP8, "weight_block_size": [32, 16]},
                  fp8_block(".weight_scale_inv", plain_scale, (32, 16))),
    "fp8_block_bf16": ({**FP8, "weight_block_size": [32, 16],
                        "modules_to_not_convert": ["model.layers.0.mlp.gate", "lm_head"]},
                       fp8_block(".weight_scale_inv", bf16_scale, (32, 16))),
    "fp8_block_ue8m0": ({**FP8, "weight_block_size": [32, 16], "scale_fmt": "ue8m0"},
                        fp8_block(".scale", ue8m0_scale(False), (32, 16))),
    "fp8_tensor": (FP8, fp8_tensor(".weight_scale", None, ())),
    "fp8_static": ({**FP8, "activation_scheme": "static", "weight_block_size": None},
                   fp8_tensor(".weight_scale_inv", ".activation_scale", ())),
    "modelopt_fp8": ({"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["lm_head",
                                                                                  "*.gate"]},
                     fp8_tensor(".weight_scale", ".input_scale", ())),
    "modelopt_fp8_channel": ({"quant_method": "modelopt",
                              "quant_algo": "FP8_PER_CHANNEL_PER_TOKEN"},
                             fp8_channel(plain_scale, True)),
    "modelopt_fp8_block": ({"quant_method": "modelopt", "quant_algo": "FP8_PB_WO"},
                           blocks_of_four_dims),
    "modelopt_nvfp4": ({"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16,
                        "ignore": ["lm_head"]}, nvfp4(False, True)),
    "ct_nvfp4": (ct("nvfp4-pack-quantized", weights(4, "float", "tensor_group", group_size=16),
                    LOCAL), nvfp4(True, True)),
    "ct_nvfp4_a16": (ct("nvfp4-pack-quantized",
                        weights(4, "float", "tensor_group", group_size=16)), nvfp4(True, False)),
    "ct_mxfp4": (ct("mxfp4-pack-quantized", weights(4, "float", "group", group_size=32)),
                 mxfp4(".weight_packed", ".weight_scale")),
    "fp4_experts": ({**FP8, "weight_block_size": [128, 128], "scale_fmt": "ue8m0"},
                    mxfp4(".weight", ".scale", as_u8=False, signed=True)),
    "fbgemm_fp8": ({"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0,
                    "modules_to_not_convert": ["lm_head"]}, fp8_channel(plain_scale, False)),
    "mxfp8": ({"quant_method": "mxfp8", "weight_block_size": [1, 32], "ignored_layers": ["lm_head"]},
              mxfp8(".weight_scale_inv", True)),
    "ct_mxfp8": (ct("mxfp8-quantized", weights(8, "float", "group", group_size=32)),
                 mxfp8(".weight_scale", True)),
    "fp8_mx_blocks": ({**FP8, "weight_block_size": [1, 32], "scale_fmt": "ue8m0"},
                      mxfp8(".weight_scale_inv", False)),
}

FAMILIES = {
    "mixtral": ({"model_type": "mixtral", "num_local_experts": E, "intermediate_size": I},
                "block_sparse_moe", ("w1", "w3", "w2")),
    "qwen3_moe": ({"model_type": "qwen3_moe", "num_experts": E, "moe_intermediate_size": I},
                  "mlp", ("gate_proj", "up_proj", "down_proj")),
}


def main():
    root = pathlib.Path(__file__).resolve().parents[1] / "fixtures" / "formats"
    root = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else root
    for seed, (name, (quantization, module)) in enumerate(FORMATS.items()):
        experts, w1, w2 = [], [], []
        rng = np.random.default_rng(seed)
        for _ in range(E):
            parts = [module(rng, I, H), module(rng, I, H), module(rng, H, I)]
            experts.append([tensors for tensors, _ in parts])
            w1.append(np.concatenate([parts[0][1], parts[1][1]]))
            w2.append(parts[2][1])
        save(root / name / "expected.safetensors",
             {"w1": np.stack(w1).astype(np.float32), "w2": np.stack(w2).astype(np.float32)})
        for family, (own, block, modules) in FAMILIES.items():
            prefix = f"model.layers.0.{block}."
            tensors = {prefix + "gate.weight": plain(np.random.default_rng(99), E, H)[0][".weight"]}
            for e, of_expert in enumerate(experts):
                for proj, parts in zip(modules, of_expert):
                    for suffix, tensor in parts.items():
                        tensors[f"{prefix}experts.{e}.{proj}{suffix}"] = tensor
            config = {"hidden_size": H, "num_hidden_layers": 1, "num_experts_per_tok": 1,
                      "dtype": "bfloat16", **own, "quantization_config": quantization}
            if name == "fp4_experts":
                config["expert_dtype"] = "fp4"
            folder = root / name / family
            save(folder / "model.safetensors", tensors)
            (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")


if __name__ == "__main__":
    main()
