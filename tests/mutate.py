"""Makes the mistakes of `mutations.txt`, one after the other, and prints which of them the tests notice.

    python -m tests.mutate [a word of the title ...]

Run it in a separate checkout: it writes to the files and restores them.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]


class Mutation(NamedTuple):
    title: str
    path: Path
    tests: list[str]
    old: str
    new: str

    def noticed_by(self) -> str:
        """Return the name of the test that fails; "" if none fails."""
        text = self.path.read_text()
        if text.count(self.old) != 1:
            raise SystemExit(f"{self.title}: {self.path} has its text {text.count(self.old)} times")
        self.path.write_text(text.replace(self.old, self.new))
        try:
            subprocess.run([sys.executable, "-m", "vpps.installation"], cwd=ROOT, capture_output=True, check=True)
            command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "2", "-p", "no:cacheprovider", *self.tests]
            said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout
            return next((line[:150] for line in said.splitlines() if line.startswith(("FAILED", "ERROR"))), "")
        finally:
            self.path.write_text(text)


def mutations() -> Iterator[Mutation]:
    """Yield the mutations in the file."""
    for block in (ROOT / "tests" / "mutations.txt").read_text().split("\n== ")[1:]:
        head, old, new = block.strip("\n").split("\n")
        title, path, tests = (part.strip() for part in head.split("|"))
        yield Mutation(title, ROOT / path, tests.split(), old.removeprefix("- "), new.removeprefix("+ "))


def main(words: list[str]) -> None:
    """Try the mutations whose title has one of the words."""
    found = [m for m in mutations() if not words or any(word in m.title for word in words)]
    caught = 0
    for m in found:
        test = m.noticed_by()
        caught += bool(test)
        print(f"{'caught' if test else 'MISSED':8}{m.title}  {test}", flush=True)
    print(f"{caught} of {len(found)} are caught")


if __name__ == "__main__":
    main(sys.argv[1:])
