# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""The list of model families agrees with the docs, and families.py with the list.  On a machine
with transformers 5 the experts of every family are compared, too."""
from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Optional

import families
import model_families
import pytest

HERE = Path(__file__).parent
DOCS = HERE.parent.parent / "docs" / "transformers.md"


def test_docs_have_the_table_of_the_list() -> None:
    assert model_families.table() in DOCS.read_text(encoding="utf-8")


def test_there_are_54_families() -> None:
    assert len(model_families.FAMILIES) == 54
    assert list(model_families.FAMILIES) == sorted(model_families.FAMILIES)


def test_decorated_classes_are_found() -> None:
    source = (
        "@use_experts_implementation\nclass A: pass\n"
        "@use_experts_implementation(has_gate=False)\nclass B: pass\n"
        "class C: pass\n"
    )
    assert families.decorated_classes(source) == ["A", "B"]


def test_small_configurations_keep_what_a_family_does_not_have() -> None:
    class Base:
        hidden_size: int = 4096
        sliding_window: Optional[int] = None

        def __init__(self, **settings: object) -> None:
            self.given = settings

    class Config(Base):
        attribute_map = {"num_local_experts": "num_experts"}
        num_attention_heads: int = 32
        num_key_value_heads: int = 32
        num_experts: Optional[int] = None
        n_group: int = 1

    assert families.small_config(Config, "mixtral").given == {
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "num_experts": 8,
        "num_local_experts": 8,
        "n_group": 1,
    }


def test_experts_of_all_families() -> None:
    try:
        from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS  # noqa: F401
    except ImportError:
        pytest.skip("transformers 5 is not installed; families.py needs it")
    command = [sys.executable, str(HERE / "families.py"), "--experts-only", "--jobs", "4"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
