"""`python bench/gpu_check`: see check.py."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])  # the folder of the benches instead of this one

from gpu_check.check import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
