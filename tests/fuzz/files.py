"""Damaged files of every format: their readers raise a vpps error, or return a valid result."""

from __future__ import annotations

import gzip
import json
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

import vpps
from tests.data import damage
from tests.fuzz.program import Finding
from vpps.data import GraphSet
from vpps.model import checkpoint
from vpps.model.learned_policy import Automaton, Encoding, LearnedPolicy, LearnedRecurrence
from vpps.tuning import choices
from vpps.tuning.candidates import Candidate

TREES = b"(3 (2 The) (4 (3 gorgeously) (2 8 1\\/2)))\n\n(0 (1 caf\xc3\xa9)(2 (0 -LRB-) (1 b) (1 c)))\n(1 d)\n"
DAGS = {
    "kind": ["leaf", "leaf", "add"], "children": [[], [], [0, 1]], "graph": {"rating": 4.5},
    "columns": {"word": ["good", "film", None], "label": [3, 2, 4], "position": [[0.5, 1], [1, 1], [2, 1.5]]},
}  # fmt: skip
TEXTS = {
    "read_treebank": TREES,
    "read_tagged": b"A|DT b|NN\n\n c|NN a|b|DT d|X \nA|DT\tc|NN\n",
    "read_text": b"the film is good .\n\nna\xc3\xafve words\tand more\n",
    "read_stream": b"the film is good .\n\nna\xc3\xafve words and more " * 9,
    "read_jsonl": json.dumps(DAGS).encode() + b"\n" + json.dumps({"vertices": 2, "edges": [[0, 1]]}).encode() + b"\n",
    "read_lattices": b"2\n4\n0 7 9 3\n0\n1 0 62\n2 1 480 0 3395\n1 2 947\n\n2\n0 5\n0\n1 0 8\n",
}
PIECES = (
    b'(', b')', b' ', b'\n', b'\t', b'|', b'\x00', b'\r\n', b'\xff', b'\xc3', b'\xef\xbb\xbf', b'\xed\xa0\x80',
    b'\\ud800', b'[', b']', b'{', b'"', b',', b'-', b'-1', b'0', b'1e999', b'NaN', b'null', b'true', b'2147483647',
    b'2147483648', b"9" * 25, b'[[', b'((((((((((((', b'\xc2\xa0', b'0x1', b'1_0', b'"vertices": 2147483647',
    b'"children": [[0]]', b'(1 ', b'    ', b"'", b'\xe2\x80\xa8',
)  # fmt: skip


KEY = choices.Key("cpu", "m", True)


@dataclass(frozen=True)
class File:
    """A damaged file.

    Attributes:
        form: name of a reader, "graphs", "checkpoint", or "tuning".
        how: kind of damage; "sealed" keeps checksums correct.
        content: content of the file.
        compressed: True for a gzip file.
    """

    form: str
    how: str
    content: bytes
    compressed: bool = False

    def check(self) -> None:
        """Raise Finding if the outcome is wrong."""
        with tempfile.TemporaryDirectory() as folder:
            suffix = {"tuning": ".json"}.get(self.form, ".txt") + ".gz" * self.compressed
            path = Path(folder) / f"case{suffix}"
            path.write_bytes(self.content)
            with suppress(OSError):
                path.chmod(0o600)
            read = self.call("path")
            shown = [
                "import pathlib, tempfile, vpps, vpps.data",
                f'path = pathlib.Path(tempfile.mkdtemp()) / "{path.name}"',
                f"path.write_bytes({self.content!r})",
                read,
            ]
            try:
                self._read(path)
            except Exception as error:
                word = "accepted: " if isinstance(error, AssertionError) else f"{type(error).__name__}: "
                raise Finding(f"{self.form}: {word}{error}".replace(folder, ""), shown) from error

    def call(self, path: str) -> str:
        """Return the call that reads the file, as text."""
        if self.form == "graphs":
            return f"print(vpps.data.GraphSet.load({path}).stat())"
        if self.form == "checkpoint":
            return f"print(vpps.Model.load({path}).numpy())"
        if self.form == "tuning":
            return (
                f"import os; os.environ['VPPS_TUNING'] = str({path}); "
                f"from vpps.tuning.choices import Key, find; print(find({KEY}))"
            )
        return f"print(vpps.data.{self.form}({path}).stat())"

    def _read(self, path: Path) -> None:
        if self.form == "graphs":
            damage.outcome(path, self.how, examples()["graphs"][0])
        elif self.form == "checkpoint":
            try:
                model = vpps.Model.load(path)
            except vpps.CheckpointError as error:
                _names(error, path)
                return
            if self.how.startswith("sealed"):
                model.save(path)
                vpps.Model.load(path)
            else:
                right = examples()["checkpoint"][0]
                assert {k: w.tobytes() for k, w in model.numpy().items()} == right, "other weights, without an error"
        elif self.form == "tuning":
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("VPPS_TUNING", str(path))
                choice = choices.find(KEY)
            assert choice is None or choice.describe()
        else:
            try:
                graphs: GraphSet = getattr(vpps.data, self.form)(path)
            except vpps.DataError as error:
                _names(error, path)
                return
            assert graphs.stat()
            graphs.save(path.with_name("again"))
            again = GraphSet.load(path.with_name("again"))
            assert damage.content_of(again) == damage.content_of(graphs), "differs after saving and loading"


def _names(error: Exception, path: Path) -> None:
    if str(path) not in str(error):
        raise AssertionError(f"an error that does not name the file: {error}")


@cache
def examples() -> dict[str, tuple[Any, bytes]]:
    """Return the content and bytes of a valid file in each binary format."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "example"
        graphs = damage.example()
        graphs.save(path)
        kept = {"graphs": (graphs, path.read_bytes())}
        model = vpps.Model(seed=1)
        W, E = model.parameter("W", (3, 3)), model.lookup("E", (4, 3))
        machine = Automaton(Encoding("sort", 2), ((0, 0, 1, 1), (1, 1, 1)))
        learned = LearnedPolicy((LearnedRecurrence(("a", "b"), ("0", "f"), machine, 3, 2),))
        with vpps.Handle(model, vpps.Adam(), target="cpu", vps=1, ema=0.9, policy=learned) as handle:
            for accumulate in (False, True):
                graph = vpps.Graph()
                handle.fb(graph, vpps.sum(W @ graph.lookup(E, 1)), accumulate=accumulate)
        model.save(path, {"note": "mine"})
        kept["checkpoint"] = ({k: w.tobytes() for k, w in model.numpy().items()}, path.read_bytes())
        path.write_text("{}")
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("VPPS_TUNING", str(path))
            choices.keep(KEY, choices.Choice(Candidate(vps=2), 1.2, "vpps-profile"))
        kept["tuning"] = (None, path.read_bytes())
    return kept


def mutated(content: bytes, random: Random) -> bytes:
    """Return the content with some damage."""
    for _ in range(random.choice((1, 1, 2, 4))):
        begin = random.randrange(len(content) + 1)
        end = min(len(content), begin + random.choice((0, 0, 1, 1, 3, 20)))
        there = random.randrange(len(content) + 1)
        new = random.choice(
            (b"", random.choice(PIECES), random.choice(PIECES), random.randbytes(1), content[there : there + 12])
        )
        content = content[:begin] + new + content[end:]
    return content


def _forged(content: bytes, random: np.random.Generator) -> bytes:
    """Return a checkpoint with another description and a correct checksum."""
    from safetensors.numpy import load, save

    head = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])["__metadata__"]
    description = json.loads(head[checkpoint._DESCRIPTION])
    damage.change(description, random)
    with suppress(ValueError, TypeError):  # values that JSON cannot express
        head[checkpoint._DESCRIPTION] = json.dumps(description)
    tensors = load(content)
    return save(tensors, checkpoint.sealed(tensors, head))


def draw(random: Random) -> File:
    """Draw a random file."""
    numbers = np.random.default_rng(random.randrange(2**32))
    form = random.choice((*TEXTS, *TEXTS, "graphs", "graphs", "checkpoint", "checkpoint", "tuning"))
    if form in TEXTS:
        content, compressed = mutated(TEXTS[form], random), random.random() < 0.2
        if compressed:
            content = gzip.compress(content, mtime=0)
            content = mutated(content, random) if random.random() < 0.5 else content
        return File(form, "mutated", content, compressed)
    sound = examples()[form][1]
    if form == "graphs":
        return File(form, *damage.damaged(sound, numbers))
    if form == "checkpoint":
        match random.randrange(3):
            case 0:
                return File(form, "sealed", _forged(sound, numbers))
            case 1:
                return File(form, "mutated", mutated(sound, random))
        how = random.choice((damage.cut, damage.overwritten, damage.overwritten, damage.header))
        return File(form, how.__name__, how(sound, numbers))
    if random.random() < 0.4:
        return File(form, "mutated", mutated(sound, random))
    told = json.loads(sound)
    damage.change(told, numbers)
    return File(form, "changed", json.dumps(told).encode())
