"""Measurements on copies, and what they leave alone."""

from __future__ import annotations

import numpy as np
import pytest

import vpps
from tests.tuning.models import Chain
from vpps.engine.configuration import Configuration
from vpps.profiling.measure import Measured, MeasuringPlan, measure
from vpps.tuning.model_copy import ModelCopy

pytestmark = pytest.mark.cpu

ONE, TWO = Configuration(vps=1), Configuration(vps=2, policy="depth")


def weights(model: vpps.Model) -> bytes:
    return b"".join(model[name].numpy().tobytes() for name in sorted(p.name for p in model))


class TestModelCopy:
    def test_trains_as_the_original_would(self) -> None:
        chain = Chain()
        copied = ModelCopy(chain.model)
        batches = chain.batches()
        with vpps.Handle(copied.model, vpps.Adam(lr=0.01), target="cpu", vps=1) as handle:
            for graph, loss in batches:
                handle.fb(*copied.of(graph, loss))
        with vpps.Handle(chain.model, vpps.Adam(lr=0.01), target="cpu", vps=1) as handle:
            for graph, loss in batches:
                handle.fb(graph, loss)
        assert weights(copied.model) == weights(chain.model)

    def test_of_mapped_graphs_too(self) -> None:
        chain = Chain()
        graph = vpps.Graph()
        h = graph.map([chain.first], inputs={"word": np.arange(7)})
        loss = vpps.sum(vpps.sum(h * h))
        copied = ModelCopy(chain.model)
        with (
            vpps.Handle(chain.model, target="cpu", vps=1, train=False) as original,
            vpps.Handle(copied.model, target="cpu", vps=1, train=False) as handle,
        ):
            same, same_loss = copied.of(graph, loss)
            np.testing.assert_array_equal(handle.forward(same, [same_loss]), original.forward(graph, [loss]))

    def test_begins_with_the_weights_of_a_model_in_training_and_leaves_it_alone(self) -> None:
        chain = Chain()
        with vpps.Handle(chain.model, target="cpu", vps=1) as training:
            training.fb(*chain.batch())
            copied = ModelCopy(chain.model)
            before = weights(chain.model)
            assert weights(copied.model) == before
            with vpps.Handle(copied.model, target="cpu", vps=1) as handle:
                handle.fb(*copied.of(*chain.batch()))
            assert weights(copied.model) != before
            assert weights(chain.model) == before
            assert (chain.model.step, copied.model.step) == (1, 2)


class TestMeasure:
    def test_takes_turns_over_the_same_batches(self) -> None:
        chain, told = Chain(), []
        batches = chain.batches()
        before = weights(chain.model)
        with vpps.Handle(chain.model, target="cpu", vps=1):  # a model in training
            found = [Measured(ONE), Measured(TWO)]
            plan = MeasuringPlan(2, 3, 1, target="cpu")
            measure(chain.model, lambda: batches, found, plan, lambda *at: told.append(at))
        for m in found:
            assert m.times is not None
            assert m.times.shape == (3, 2)
            assert (m.times > 0).all()
            assert m.seconds == np.median(m.times)
        assert [m.vps for m in found] == [1, 2]
        assert found[0].barriers < found[1].barriers
        assert told == [(k, 6) for k in range(1, 7)]
        assert (weights(chain.model), chain.model.step) == (before, 0)

    def test_of_evaluation(self) -> None:
        chain = Chain()
        batches = chain.batches()
        m = Measured(ONE)
        measure(chain.model, lambda: batches, [m], MeasuringPlan(9, 1, 0, train=False, target="cpu"))
        assert m.times is not None
        assert m.times.shape == (1, 3), "as many batches as there are"

    def test_what_does_not_run_says_why_and_the_others_go_on(self) -> None:
        chain = Chain()
        batches = chain.batches()
        left_out, good, bad = Measured(TWO, reason="no room"), Measured(ONE), Measured(Configuration(tile="no-such"))
        measure(chain.model, lambda: batches, [left_out, good, bad], MeasuringPlan(1, 2, 0, target="cpu"))
        assert (left_out.times, left_out.reason) == (None, "no room")
        assert good.times is not None
        assert bad.times is None
        assert "tile='no-such'" in bad.reason
        with pytest.raises(vpps.CompileError, match="no-such"):
            measure(chain.model, lambda: batches, [Measured(bad.configuration)], MeasuringPlan(1, 1, 0, target="cpu"))

    def test_needs_batches(self) -> None:
        with pytest.raises(vpps.WorkloadError, match="no batches"):
            measure(Chain().model, list, [Measured(ONE)], MeasuringPlan(target="cpu"))
