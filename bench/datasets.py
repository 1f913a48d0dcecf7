"""Default data of the GPU benches.

The folder of data sets is $VPPS_DATA, or shared/data in the checkout or beside it. If there is none, as on a machine to
which only the checkout was copied, a synthetic treebank is written to a temporary file. Its sentences are shorter; the
lines name the source under `data`.
"""

from __future__ import annotations

import atexit
import os
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from vpps.data.treebank import Tree

_ROOT = Path(__file__).resolve().parent.parent
SYNTHETIC = "synthetic"


class Tokens(NamedTuple):
    """A sequence of words and their labels."""

    words: NDArray[np.int64]
    labels: NDArray[np.int64]


def trees_file(asked: Path | None) -> Path:
    """Return the given file, or the Stanford Sentiment Treebank, or synthetic trees."""
    return asked or _find("sst/train.txt") or _write(map(str, _synthetic()))


def sentences_file(asked: Path | None) -> Path:
    """Return the given file of tagged sentences, or WikiNER, or labelled words of synthetic trees."""
    return asked or _find("wikiner/en.txt") or _write(
        " ".join(f"{token}|{label}" for token, label in zip(tree.tokens, tree.labels, strict=False))
        for tree in _synthetic()
    )  # fmt: skip


def name_of(path: Path) -> str:
    """Return the data's name in lines: its folder and file."""
    return SYNTHETIC if path.name.startswith(SYNTHETIC) else f"{path.parent.name}/{path.name}"


def _find(name: str) -> Path | None:
    folders = [os.environ.get("VPPS_DATA"), _ROOT / "shared" / "data", _ROOT.parent / "shared" / "data"]
    paths = [Path(folder, name) for folder in folders if folder]
    return next((path for path in paths if path.exists()), None)


def _synthetic() -> list[Tree]:
    from vpps.data.synthetic import synthetic_treebank  # imported here: with real data a peer runs without vpps

    return synthetic_treebank(2000, 1).train


def _write(lines: Iterable[str]) -> Path:
    print("no data sets here (set VPPS_DATA): the data is synthetic", file=sys.stderr)
    with tempfile.NamedTemporaryFile("w", prefix=SYNTHETIC, suffix=".txt", encoding="utf-8", delete=False) as file:
        file.write("\n".join(lines))
    atexit.register(Path(file.name).unlink, missing_ok=True)
    return Path(file.name)
