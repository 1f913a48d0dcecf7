"""The source rendered for a small model, kept to be read and compared; `python -m tests.kernel.golden` writes it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import vpps
from tests.kernel.programs import tree_lstm
from vpps.engine.ahead import specs
from vpps.kernel.render import render_cuda
from vpps.placement.onchip import known_device
from vpps.placement.update import Update

COMMAND = "python -m tests.kernel.golden"
FILE = Path(__file__).parent / "golden" / "tree_small.cu"


def rendered() -> str:
    """A Tree-LSTM of 8 units for a GPU of two multiprocessors, one of its matrices in shared memory and one in L2. The
    headers are named, not there: their text is in templates/."""
    model, example = tree_lstm(8, embedding=8)
    gpu = dataclasses.replace(known_device("H200"), name="small GPU", sms=2)
    options = vpps.ChipOptions(tiers={"tree_lstm/W^T": "shared", "output/W": "L2"})
    update = Update(vpps.Adam(), 1, 1, None)
    spec, _, _ = next(specs(model, example, gpu, gpu.sms, update, 2, options, passes=vpps.Passes()))
    return render_cuda(spec, named=True)


if __name__ == "__main__":
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text(rendered(), encoding="utf-8")
    print(f"wrote {FILE}; read what has changed: git diff {FILE.name}")
