"""What the tuning database keeps, gives back, and refuses to read."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import vpps
from tests.tuning.models import Chain
from vpps.compiler.passes import Passes
from vpps.engine.configuration import Configuration
from vpps.model.precisions import Precisions
from vpps.ops.precision import PRECISIONS
from vpps.record.trace import digest_of
from vpps.tuning.database import Key, Tuned, TuningDatabase, choices_in, key_for

pytestmark = pytest.mark.host

KEY = Key("cpu: a processor, 2 cores, avx2", "model", "1.0", True, frozenset({"a", "b"}))
TUNED = Tuned(
    Configuration(vps=1, policy="depth", passes=Passes()), 0.25, 1.5, 100, "2026-11-22T12:00:00+00:00", "vpps-profile"
)


@pytest.fixture
def database(tmp_path: Path) -> TuningDatabase:
    return TuningDatabase(tmp_path / "cache" / "tuning")


class TestLookup:
    def test_gives_what_was_stored(self, database: TuningDatabase) -> None:
        database.store(KEY, TUNED)
        assert database.lookup(KEY, 100) == TUNED

    def test_of_gpu_options_too(self, database: TuningDatabase) -> None:
        options = vpps.ChipOptions(ownership="round-robin", rpw=3, tiers={"U^T": "shared"})
        tuned = replace(TUNED, configuration=Configuration(onchip=options, passes=Passes(recompute=True)))
        database.store(KEY, tuned)
        assert database.lookup(KEY, 100) == tuned

    def test_without_a_directory_finds_nothing_and_makes_none(self, database: TuningDatabase) -> None:
        assert database.lookup(KEY, 100) is None
        assert not database.folder.parent.exists()

    @pytest.mark.parametrize("vertices, seconds", [(1, 0.1), (20, 0.1), (90, 0.2), (400, 0.2), (5000, 0.3)])
    def test_takes_the_batch_size_that_is_nearest_by_ratio(
        self, database: TuningDatabase, vertices: int, seconds: float
    ) -> None:
        for size, time in ((10, 0.1), (100, 0.2), (3000, 0.3)):
            database.store(KEY, replace(TUNED, vertices=size, seconds=time))
        found = database.lookup(KEY, vertices)
        assert found is not None
        assert found.seconds == seconds

    def test_does_not_reach_for_batches_of_quite_another_size(self, database: TuningDatabase) -> None:
        database.store(KEY, TUNED)
        assert database.lookup(KEY, 999) is not None
        assert database.lookup(KEY, 1001) is None
        assert database.lookup(KEY, 9) is None

    def test_matches_graphs_with_some_of_the_cells(self, database: TuningDatabase) -> None:
        database.store(KEY, TUNED)
        assert database.lookup(replace(KEY, cells=frozenset({"a"})), 100) == TUNED
        assert database.lookup(replace(KEY, cells=frozenset({"a", "c"})), 100) is None

    @pytest.mark.parametrize("other", [{"device": "cpu: another"}, {"model": "x"}, {"version": "2"}, {"train": False}])
    def test_is_of_one_device_model_version_and_kind_of_handle(
        self, database: TuningDatabase, other: dict[str, object]
    ) -> None:
        database.store(KEY, TUNED)
        assert database.lookup(replace(KEY, **other), 100) is None  # type: ignore[arg-type]


class TestStore:
    def test_replaces_what_was_measured_with_such_batches(self, database: TuningDatabase) -> None:
        database.store(KEY, TUNED)
        better = replace(TUNED, vertices=110, seconds=0.1)
        path = database.store(KEY, better)
        assert len(json.loads(path.read_text())["records"]) == 1
        assert database.lookup(KEY, 100) == better

    def test_keeps_records_of_other_cells(self, database: TuningDatabase) -> None:
        other = replace(KEY, cells=frozenset({"c"}))
        database.store(KEY, TUNED)
        database.store(other, replace(TUNED, seconds=0.1))
        assert database.lookup(KEY, 100) == TUNED

    def test_makes_a_directory_that_is_the_users_alone(self, database: TuningDatabase) -> None:
        path = database.store(KEY, TUNED)
        assert database.folder.stat().st_mode & 0o777 == 0o700
        assert [p.name for p in database.folder.iterdir()] == [path.name], "locks and scratch folders are gone"

    def test_refuses_a_directory_that_others_can_write_to(self, database: TuningDatabase) -> None:
        database.folder.mkdir(parents=True)
        database.folder.chmod(0o777)
        with pytest.raises(vpps.CompileError, match=r"writable by other users.*chmod.*VPPS_CACHE_DIR"):
            database.store(KEY, TUNED)

    def test_says_where_it_cannot_write(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(vpps.CompileError, match="VPPS_CACHE_DIR"):
            TuningDatabase(tmp_path / "file" / "tuning").store(KEY, TUNED)

    def test_by_several_processes_at_once_loses_nothing(self, database: TuningDatabase) -> None:
        program = (
            "import sys; from pathlib import Path; from dataclasses import replace\n"
            "from tests.tuning.test_database import KEY, TUNED, TuningDatabase\n"
            "database, first = TuningDatabase(Path(sys.argv[1])), 5 * int(sys.argv[2])\n"
            "for k in range(first, first + 5): database.store(KEY, replace(TUNED, vertices=10 ** k))"
        )
        root = Path(__file__).parents[2]
        processes = [
            subprocess.Popen([sys.executable, "-c", program, str(database.folder), str(k)], cwd=root) for k in range(3)
        ]
        assert [p.wait(timeout=120) for p in processes] == [0, 0, 0]
        for k in range(15):
            found = database.lookup(KEY, 10**k)
            assert found is not None
            assert found.vertices == 10**k


class TestDamage:
    @pytest.mark.parametrize(
        "text",
        [
            "",
            "{",
            "[]",
            '{"format": 1}',
            '{"format": 2, "records": []}',
            '{"format": 1, "records": [{}]}',
            '{"format": 1, "records": 3}',
            "[" * 100_000,
            "\0" * 50,
        ],
    )
    def test_is_no_record(self, database: TuningDatabase, text: str) -> None:
        path = database.store(KEY, TUNED)
        path.write_text(text)
        assert database.lookup(KEY, 100) is None
        database.store(KEY, TUNED)
        assert database.lookup(KEY, 100) == TUNED

    @pytest.mark.parametrize(
        "field, value", [("seconds", "fast"), ("vertices", 0), ("configuration", {"policy": "none"}), ("cells", 1)]
    )
    def test_of_a_field_is_no_record(self, database: TuningDatabase, field: str, value: object) -> None:
        path = database.store(KEY, TUNED)
        kept = json.loads(path.read_text())
        kept["records"][0][field] = value
        path.write_text(json.dumps(kept))
        assert database.lookup(KEY, 100) is None

    def test_is_logged(self, database: TuningDatabase, caplog: pytest.LogCaptureFixture) -> None:
        path = database.store(KEY, TUNED)
        path.write_text("{")
        database.lookup(KEY, 100)
        assert f"{path} is damaged and not used" in caplog.text

    @pytest.mark.parametrize(
        "change",
        [{"when": 7}, {"when": None}, {"by": 3}, {"ratio": 10**400}, {"vertices": 10**400}, {"seconds": -1}],
        ids=lambda change: next(iter(change)),
    )
    def test_a_record_of_no_day_or_size_is_damaged(self, database: TuningDatabase, change: dict[str, Any]) -> None:
        path = database.store(KEY, TUNED)
        kept = json.loads(path.read_text())
        kept["records"][0].update(change)
        path.write_text(json.dumps(kept))
        assert database.lookup(KEY, 100) is None
        assert choices_in(path) is None

    def test_what_others_can_write_to_is_not_read(
        self, database: TuningDatabase, caplog: pytest.LogCaptureFixture
    ) -> None:
        path = database.store(KEY, TUNED)
        path.chmod(0o666)
        assert database.lookup(KEY, 100) is None
        assert "other users" in caplog.text

    def test_where_nothing_can_be_written_storing_says_so(
        self, database: TuningDatabase, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(*_: object) -> None:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))

        database.store(KEY, TUNED)
        monkeypatch.setattr("os.replace", refuse)
        with pytest.raises(vpps.CompileError, match=r"cannot be written .*; set VPPS_CACHE_DIR to a directory"):
            database.store(KEY, TUNED)
        assert database.lookup(KEY, 100) == TUNED


class TestKey:
    def test_is_the_same_in_every_process(self) -> None:
        program = (
            "from tests.tuning.models import Chain; from vpps.tuning.database import key_for\n"
            "chain = Chain(seed=5); key = key_for(chain.model, chain.batch()[0].blocks, 'd', True)\n"
            "print(key.model, *sorted(key.cells))"
        )
        chain = Chain()
        own = key_for(chain.model, chain.batch()[0].blocks, "d", True)
        run = subprocess.run(
            [sys.executable, "-c", program], cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True
        )
        assert run.stdout.split() == [own.model, *sorted(own.cells)]

    def test_differs_with_shapes_names_and_what_is_trained(self) -> None:
        def key(chain: Chain) -> Key:
            return key_for(chain.model, chain.batch()[0].blocks, "d", True)

        frozen = Chain()
        frozen.W.trainable = False
        assert key(Chain()) == key(Chain(seed=9))
        assert len({key(Chain()).model, key(Chain("V")).model, key(frozen).model}) == 3

    def test_differs_with_what_products_round(self) -> None:
        """However that was said."""
        chain = Chain()
        blocks, others = chain.batch()[0].blocks, [p.name for p in chain.model if len(p.shape) != 2]

        def key(precision: str | dict[str, str]) -> Key:
            return key_for(chain.model, blocks, "d", True, Precisions.given(precision))

        assert key("float32") == key_for(chain.model, blocks, "d", True)
        assert key("bf16") == key({"W": "bf16"}) == key({"*": "bf16"} | dict.fromkeys(others, "float32"))
        assert len({key(name).file_name for name in PRECISIONS}) == len(PRECISIONS)

    def test_tells_programs_apart(self) -> None:
        W = vpps.Model().parameter("W", (4, 4))

        def digest(function: object) -> str:
            graph = vpps.Graph()
            vpps.cell(function)(graph.zeros(4))  # type: ignore[arg-type]
            (program,) = (cell for cell in graph.blocks if cell.name == "f")
            return digest_of(program)

        def f(x):  # type: ignore[no-untyped-def]
            return vpps.tanh(W @ x)

        first = digest(f)

        def f(x):  # type: ignore[no-untyped-def]
            return vpps.sigmoid(W @ x)

        second = digest(f)

        def f(x):  # type: ignore[no-untyped-def]
            return vpps.tanh(W @ x) * 2.0

        assert len({first, second, digest(f)}) == 3


@pytest.mark.parametrize(
    "given, words",
    [
        ("bf16", "precision bf16, vps 2"),
        ({"W": "bf16", "*": "tf32"}, "precision tf32, bf16 in W, vps 2"),
        ({"W": "bf16"}, "precision float32, bf16 in W, vps 2"),
    ],
)
def test_a_configuration_keeps_its_precision(given: str | dict[str, str], words: str) -> None:
    configuration = Configuration(vps=2, passes=Passes(), precision=Precisions.given(given))
    kept = json.loads(json.dumps(configuration.as_json()))
    assert kept == {"vps": 2, "precision": given}
    assert Configuration.from_json(kept) == configuration
    assert configuration.describe() == words
    assert configuration.describe(beside=configuration) == "default"


def test_a_record_describes_itself() -> None:
    assert TUNED.describe() == "vps 1, policy depth (by vpps-profile on 2026-11-22, 1.50x the default)"
