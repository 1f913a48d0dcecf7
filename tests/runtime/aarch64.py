"""python -m tests.runtime.aarch64 [--graphs N] [--compiler COMMAND]: see `scripts/test_aarch64`."""

from __future__ import annotations

import argparse
import shlex
import subprocess
import tempfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from random import Random

import numpy as np

import vpps
from tests.fuzz import graphs
from tests.zoo.cases import CASES
from vpps.kernel.host_compiler import FLAGS, ISA_FLAGS, tile_of_machine
from vpps.kernel.render import TILES, render_cpu, render_tails, tiles_of
from vpps.runtime import cpu
from vpps.runtime.machine import Wanted

DRIVER = Path(__file__).with_name("launches.cpp")
EMULATOR = ["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu"]
TILE, VPS = TILES["neon"], 2


class Recorded(cpu.CpuMachine):
    """Keeps script, pool before and pool after of every launch. Panels are as wide as NEON's, so pools look alike."""

    @classmethod
    def for_handle(cls, w: Wanted) -> Recorded:
        tiles = tiles_of(tile_of_machine().isa)
        cls.latest = cls(VPS, tile=next(tile.name for tile in tiles if tile.panel == TILE.panel))
        cls.latest.kept = []
        return cls.latest

    def launch(self, script, continuation=None):
        before = self.pool.copy()
        super().launch(script, continuation)
        self.wait()
        self.kept.append((script.copy(), before, self.pool.copy()))


def trainings(n_graphs: int) -> Iterator[tuple[str, vpps.Model, list[tuple[vpps.Graph, vpps.Expression]]]]:
    """Name, model, and a graph with its loss for two steps."""
    for name, case in CASES.items():
        task, recorded = case.make(), [vpps.Graph(), vpps.Graph()]
        batches = islice(task.train.batches(8), 2)
        yield name, task.model, [(g, task.loss(g, batch)) for g, batch in zip(recorded, batches, strict=True)]
    for number in range(n_graphs):
        model, graph, _, loss = graphs.draw(Random(number)).build()
        yield f"random graph {number}", model, [(graph, loss)] * 2


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--compiler", type=shlex.split, default=["aarch64-linux-gnu-g++"])
    parser.add_argument("--graphs", type=int, default=100)
    args = parser.parse_args()
    cpu.CpuMachine = Recorded
    failed = []
    with tempfile.TemporaryDirectory() as folder:

        def compiled(name: str, source: str, flags: tuple[str, ...] = (*FLAGS, *ISA_FLAGS[TILE.isa])) -> str:
            path = Path(folder, name)
            path.with_suffix(".cpp").write_text(source, encoding="utf-8")
            subprocess.run([*args.compiler, "-w", *flags, path.with_suffix(".cpp"), "-o", path], check=True)
            return str(path)

        driver = compiled("driver", DRIVER.read_text(encoding="utf-8"), ())
        command = [*EMULATOR, driver, compiled("kernel", render_cpu(TILE))]
        for number, (name, model, steps) in enumerate(trainings(args.graphs)):
            # Without clipping the last part of a gradient comes with its step.
            clip_norm = 1.0 if number % 2 else None
            with vpps.Handle(model, vpps.Adam(lr=0.01), clip_norm=clip_norm, ema=0.9, target="cpu") as handle:
                for graph, loss in steps:
                    handle.fb(graph, loss)
                machine = Recorded.latest
                tails = compiled("tails", render_tails(list(machine._tails), TILE))
            given = [x.tobytes() for s, p, _ in machine.kept for x in (np.array([s.size, p.size], np.uint32), s, p)]
            run = subprocess.run([*command, tails, str(VPS)], input=b"".join(given), stdout=subprocess.PIPE, check=True)
            found, here = np.frombuffer(run.stdout, np.float32), np.concatenate([after for *_, after in machine.kept])
            equal = (found.view(np.uint32) == here.view(np.uint32)) | (np.isnan(found) & np.isnan(here))
            if not equal.all():
                failed.append(name)
            print(f"{name}: {(~equal).sum()} of {equal.size} floats differ", *np.flatnonzero(~equal)[:3], flush=True)
    raise SystemExit(f"other bits: {failed}" if failed else None)


if __name__ == "__main__":
    main()
