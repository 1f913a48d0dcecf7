"""`python bench/gpu_check`: see check.py."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])  # the benches' folder instead of this folder

from gpu_check.check import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
