"""`Handle.inspect` gives the plan that the handle itself would launch."""

from __future__ import annotations

import re

import pytest

import vpps
from tests.report.models import lists, tree
from vpps.graph.drawing import draw
from vpps.kernel.host_compiler import build_cpu
from vpps.report.kernel_report import kernels_text

pytestmark = pytest.mark.cpu


def test_shows_what_fb_launches() -> None:
    model, (graph, loss) = tree()
    with vpps.Handle(model, vpps.Adam(), target="cpu", vps=2) as handle:
        found = handle.inspect(graph, loss)
        assert str(found.script) == handle.disassemble(graph, loss)
        assert found.source() == handle.source()
        handle.fb(graph, loss)
        handle.sync_get_latest_loss()
        again = handle.inspect(graph, loss)
        assert found.plan.training
        assert found.plan.vps == 2
        # Launches alternate between two loss slots, so their scripts are similar but not identical.
        assert again.plan.steps == found.plan.steps
        assert again.plan.slabs == found.plan.slabs
        memory = handle.memory
        assert 4 * found.plan_made.pool_floats == memory.peak
        assert found.plan.slab_bytes + found.plan.other_bytes == memory.batch


def test_has_what_its_text_names_and_compiles_on_demand() -> None:
    model, (graph, loss) = tree()
    with vpps.Handle(model, target="cpu", vps=2) as handle:
        found = handle.inspect(graph, loss)
        assert found.kernel is None
        assert found.resources == kernels_text([found.compiled])
        assert (found.compiled.vps, found.compiled.binary) == (2, build_cpu()[0])
        assert str(found.graph) == str(draw(graph))
        shown = re.findall(r"\.(\w+)", repr(found))
        assert {"graph", "plan", "script", "cell", "source", "asm", "resources"} == set(shown)
        assert all(hasattr(found, name) for name in shown)


def test_of_a_forward_only_handle_shows_inference() -> None:
    model, (graph, loss) = lists()
    with vpps.Handle(model, target="cpu", vps=2, train=False) as handle:
        found = handle.inspect(graph, loss)
        assert not found.plan.training
        assert "lowered: forward" in found.cell
        assert "backward" not in found.cell
        handle.forward(graph, [loss])
        assert 4 * found.plan_made.pool_floats == handle.memory.peak


def test_refuses_as_fb_does() -> None:
    model, (graph, loss) = tree()
    with vpps.Handle(model, target="cpu", vps=1) as handle:
        with pytest.raises(vpps.GraphError, match=r"expected a vpps\.Graph"):
            handle.inspect(loss, graph)  # type: ignore[arg-type]
        with pytest.raises(vpps.GraphError, match="the loss must be a scalar"):
            handle.inspect(graph, graph.zeros(3))
    with pytest.raises(vpps.HandleError, match="the handle is closed"):
        handle.inspect(graph, loss)
