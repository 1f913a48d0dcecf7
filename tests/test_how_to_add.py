"""ARCHITECTURE.md lists all files to change for an op, an optimizer, a policy and a target. The test adds one of each
to a copy of the package and compares it with the reference."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import ROOT, TIMEOUT
from vpps.kernel.host_compiler import compiler

pytestmark = pytest.mark.cpu

# Additions as diffs, with enough text around them to find the place; without such text, at the end of the file.
EXAMPLES = {
    "op": """\
--- vpps/ops/elementwise.py
+unary(
+    "softsign",
+    lambda x: x / (1 + abs(x)),
+    lambda x, y: (1 - abs(y)) ** 2,
+    "x / (1 + |x|)",
+    reads="y",
+)
--- templates/ops/elementwise.cuh
+struct Softsign {
+    VP_DEVICE static float forward(float x, float) { return x / (1.f + Abs::forward(x, 0.f)); }
+    VP_DEVICE static float backward(float, float y, float dy, float)
+    {
+        const float slope = 1.f - Abs::forward(y, 0.f);
+        return dy * slope * slope;
+    }
+};
""",
    "optimizer": '''\
--- vpps/model/optim.py
-"Adagrad", "RMSprop"]
+"Adagrad", "RMSprop", "Dampened"]
@@
+@dataclass
+class Dampened(Momentum):
+    """m = momentum * m + (1 - momentum) * (g + weight_decay * w);  w -= lr * m."""
+
+    name: ClassVar[str] = "dampened"
+    device: ClassVar[str] = "DampenedMomentum"
+
+    def _extra(self, step: int) -> dict[str, float]:
+        return {"beta1": self.momentum, "complement1": 1 - self.momentum}
+
+    def reference(self, w: Array, g: Array, moments: Sequence[Array], step: int) -> tuple[Array, list[Array]]:
+        m = self.momentum * moments[0] + (1 - self.momentum) * (g + self.weight_decay * w)
+        return w - self.rate * m, [m]
+
+
 OPTIMIZERS: tuple
--- templates/optimizers.cuh
+struct DampenedMomentum {
+    enum { MOMENTS = 1 };
+    VP_DEVICE static void step(float& w, float g, float& m, float&, const Hyper& h)
+    {
+        m = fma_(h.beta1, m, h.complement1 * fma_(h.weight_decay, w, g));
+        w -= h.lr * m;
+    }
+};
--- vpps/cli/options.py
     "rmsprop": 1e-3,
+    "dampened": 0.1,
''',
    "policy": """\
--- vpps/planner/native/policy_table.py
         PolicyRow("fsm", learned=True),
+        PolicyRow("widest"),
--- vpps/planner/native/policies/widest.h
+// Policy `widest`: the type of which most vertices are ready is next.
+#pragma once
+
+#include "policies/policy.h"
+
+struct Widest : Policy {
+    void batch(TypedGraph& graph, const Automaton&) override
+    {
+        run.start(graph);
+        while (!run.done())
+            run.execute(graph, run.best_ready([&](i64 a, i64 b) { return run.ready(a) > run.ready(b); }));
+    }
+};
""",
    "target": """\
--- vpps/targets.py
-in (CUDA, CPU, SIMT)}
+in (CUDA, CPU, SIMT, HIP)}
@@
+HIP = Target(
+    "hip",
+    machine=Hook("vpps.runtime.hip:HipMachine.for_handle"),
+    is_gpu=True,
+    device=Hook("vpps.runtime.hip:default_gpu"),
+    render=CUDA.render,
+    compile=Hook("vpps.runtime.hip:compiled"),
+)
+
 TARGETS = {
--- vpps/runtime/hip.py
+from vpps.runtime.simt import SimtMachine, compiled, default_gpu
+from vpps.targets import HIP
+
+class HipMachine(SimtMachine):
+    target = HIP.name
""",
}

# Trees with two kinds of nodes, so that there is something for a policy to choose.
PROGRAM = """
import numpy as np
import references
import vpps
from vpps.cli.options import LEARNING_RATES, TargetName
from vpps.reference import Reference, weights_of
from vpps.script.instructions import BY_NAME

STEPS, WIDTH = 3, 8
model = vpps.Model(seed=3)
W, U = (model.parameter(name, (WIDTH, WIDTH)) for name in "WU")
words = model.lookup("words", (5, WIDTH), init="normal")

@vpps.cell
def one(child):
    return vpps.softsign(W @ child)

@vpps.cell
def two(left, right):
    return vpps.softsign(U @ left + right)

def batch(step):
    graph = vpps.Graph()
    roots = []
    for tree in range(3):
        x = graph.lookup(words, (tree + step) % 5)
        for level in range(4):
            x = one(x) if (tree + level) % 2 else two(x, graph.lookup(words, level))
        roots.append(vpps.sum(x))
    return graph, vpps.sum(roots)

optimizer = vpps.Dampened(lr=0.1, weight_decay=0.1)
weights = weights_of(model)
moments = {name: [np.zeros_like(w)] for name, w in weights.items()}
with vpps.Handle(model, optimizer, vps=2, policy="widest") as handle:
    for step in range(1, STEPS + 1):
        graph, loss = batch(step)
        handle.fb(graph, loss)
        reference = Reference(graph, weights)
        gradients = reference.backward(loss)
        for name, w in weights.items():
            rows = reference.touched_rows(words) if name == "words" else slice(None)
            of_rows = [m[rows] for m in moments[name]]
            weights[name][rows], of_rows = optimizer.reference(w[rows], gradients[name][rows], of_rows, step)
            for m, new in zip(moments[name], of_rows):
                m[rows] = new
        np.testing.assert_allclose(handle.sync_get_latest_loss(), reference.value(loss), rtol=1e-5)
    assert handle.policy == "widest"
for name, trained in model.numpy().items():
    assert np.linalg.norm(trained - weights[name]) <= 1e-5 * np.linalg.norm(weights[name]), name

with vpps.Handle(model, train=False, target="hip", vps=2) as handle:
    graph, loss = batch(0)
    found = handle.forward(graph, [loss])[0]
    np.testing.assert_allclose(found, Reference(graph, model.numpy()).value(loss), rtol=1e-5)
    assert handle.explain() and repr(handle.inspect(graph, loss)).count("hip") == 1
    assert "for the emulator" in vpps.specialize(model, (graph, loss), "hip", vps=2, train=False).explain()
assert {"auto", "cpu", "cuda", "hip", "simt"} == set(TargetName)

assert {"softsign", "softsign.grad0", "update_rows.dampened"} <= set(BY_NAME)
assert vpps.softsign.__doc__.startswith("x / (1 + |x|), element by element.")
assert {"softsign", "Dampened"} <= set(vpps.__all__)
assert ".. autofunction:: softsign" in references.public_functions()
assert ".. autoclass:: Dampened" in references.optimizers()
assert "softsign(x)" in references.operators()
assert LEARNING_RATES.keys() == {rule.name for rule in vpps.model.optim.OPTIMIZERS}
"""


def changes(example: str) -> list[tuple[str, str, str]]:
    """Return the file, the old text in it ("" for its end) and the new text there."""
    found = []
    for part in re.split(r"^--- ", example, flags=re.MULTILINE)[1:]:
        path, _, text = part.partition("\n")
        for hunk in text.split("@@\n"):
            old, new = ("\n".join(x[1:] for x in hunk.splitlines() if x[0] in signs) for signs in (" -", " +"))
            found.append((path, old, new))
    return found


@pytest.mark.parametrize("what", EXAMPLES)
def test_the_guide_names_the_files_that_change(what: str) -> None:
    guide = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").partition("\n## How to add")[2]
    row = next(line for line in guide.splitlines() if line.startswith(f"| {what} |"))
    assert set(re.findall(r"`((?:vpps|templates)/[^`]*)`", row)) == {path for path, _, _ in changes(EXAMPLES[what])}


def test_what_is_added_works(tmp_path: Path) -> None:
    for folder in ("vpps", "templates"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name, old, new in (change for example in EXAMPLES.values() for change in changes(example)):
        path = tmp_path / name
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        assert not old or text.count(old) == 1, (name, old)
        path.write_text(text.replace(old, new) if old else f"{text}\n{new}\n", encoding="utf-8")
    quick = tmp_path / "quick"  # optimizing would take most of the time
    quick.write_text(f'#!/bin/sh\nexec {shlex.join(compiler())} "$@" -O0\n')
    quick.chmod(0o755)
    environment = {
        **os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT / 'docs/extensions'}", "VPPS_VERIFY": "1",
        "VPPS_CACHE_DIR": str(tmp_path / "cache"),
        "VPPS_ISA": "portable", "VPPS_PASSES": "-fusion", "VPPS_RECORDER": "python", "CXX": str(quick),
    }  # fmt: skip
    for program in (["-m", "vpps.installation"], ["-c", PROGRAM]):
        done = subprocess.run(
            [sys.executable, *program], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
            timeout=2 * TIMEOUT,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
