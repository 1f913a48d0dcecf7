"""In a folder of PYTHONPATH, this gives every Python process the imaginary GPU of tests/runtime/fake_cuda.py: the gpu
tier runs without a GPU, as far as emulated kernels are fast enough for it, and so does scripts/gpu_check.

    PYTHONPATH=tests/runtime/imaginary:. python -m pytest -m gpu tests/gpu/test_machine.py
"""

import pytest

from tests.runtime import fake_cuda

gpu = fake_cuda.install_with_kernels(pytest.MonkeyPatch())
gpu.attributes["MULTIPROCESSOR_COUNT"] = 8  # the tier asks for seven virtual processors
gpu.blocks_per_sm = 2  # and for two blocks on each
