"""Rendered source of a small model, for readers, and hashes of other models' sources.

`python -m tests.kernel.golden` writes them."""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import json
from functools import partial
from pathlib import Path

import vpps
from tests.kernel.programs import bilstm_tagger, rvnn, tree_lstm
from vpps.engine.ahead import gpu_for, specs
from vpps.kernel.render import TILES, render_cuda, render_tails
from vpps.model.precisions import Precisions
from vpps.placement.onchip import known_device
from vpps.placement.update import Update

COMMAND = "python -m tests.kernel.golden"
FOLDER = Path(__file__).parent / "golden"


def rendered(precision: str = "float32") -> str:
    """Source for a recursive network with 8 units, on a GPU with two multiprocessors and with one matrix in L2. The
    source includes the headers, whose text is in templates/."""
    model, example = rvnn(8)
    gpu = dataclasses.replace(known_device("H200"), name="small GPU", sms=2)
    options = vpps.ChipOptions(tiers={"Wo": "L2"})
    update, precisions = Update(vpps.Adam(), 1, 1, None), Precisions.given(precision)
    found = specs(model, example, gpu, gpu.sms, update, 2, options, passes=vpps.Passes(), precisions=precisions)
    return render_cuda(next(found)[0], named=True)


def changed_by(precision: str) -> str:
    """Differences in the same model's source with another precision, as a unified diff."""
    before, after = (rendered(name).splitlines(keepends=True) for name in ("float32", precision))
    return "".join(difflib.unified_diff(before, after, "float32", precision, n=0))


def hashes() -> str:
    """Hashes of the model-dependent code: three models on a CPU, in the emulator and on an H100."""
    found, tile = {}, TILES["avx512"]
    for name, make in {"tree_lstm": partial(tree_lstm, 256), "bilstm_tagger": bilstm_tagger, "rvnn": rvnn}.items():
        for target in ("cpu", "simt", "sm_90"):
            gpu = None if target == "cpu" else known_device("H100")
            if target == "simt":
                gpu, _ = gpu_for(target, None, None, 12)
            vps = 2 if gpu is None else gpu.sms
            given = gpu, vps, Update(vpps.Adam(), 1, 1, None), 2, vpps.ChipOptions()
            spec = next(specs(*make(), *given, passes=vpps.Passes(), panel=tile.panel if gpu is None else 1))[0]
            source = render_tails(spec.tails, tile) if gpu is None else render_cuda(spec, named=True)
            found[f"{name} {target}"] = hashlib.sha256(source.encode()).hexdigest()[:8]
    return json.dumps(found, indent=0) + "\n"


FILES = {"small.cu": rendered, "small_bf16.diff": lambda: changed_by("bf16"), "hashes.json": hashes}

if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, make in FILES.items():
        (FOLDER / name).write_text(make(), encoding="utf-8")
    print(f"wrote {', '.join(FILES)}; read what has changed: git diff {FOLDER.name}")
