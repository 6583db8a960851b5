from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import glm53_exl3
import glm53_exl3.decode


def test_the_package_imports_neither_numba_nor_vllm() -> None:
    script = (
        "import sys, glm53_exl3.decode as d\n"
        "import torch\n"
        "d.decode_trellis(torch.zeros(8, 8, 32, dtype=torch.int16), 'mcg')\n"
        "print([m for m in ('numba', 'vllm', 'transformers') if m in sys.modules])\n"
    )
    assert glm53_exl3.__file__ is not None
    source = str(Path(glm53_exl3.__file__).parent.parent)
    environment = os.environ | {"PYTHONPATH": source}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr


def test_everything_exported_exists() -> None:
    assert all(hasattr(glm53_exl3.decode, name) for name in glm53_exl3.decode.__all__)
