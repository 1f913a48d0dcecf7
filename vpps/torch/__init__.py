"""A vpps graph as a layer of a PyTorch network.

    net = vpps.torch.Module(model)  # a torch.nn.Module; its parameters are the model's weights
    loss = net.loss(graph, expression)  # one launch: forward and gradients
    hidden = net(graph, rows)  # tensors, through which gradients flow

module: what users call; function: calls as nodes of PyTorch's autograd graph, arrays of either side as those of the
other; weights: parameters as tensors over the same memory; state: what a state dict holds beside weights; cores:
threads of the two on the same cores. Nothing else in vpps imports it: it needs PyTorch.
"""

try:
    import torch as _torch  # noqa: F401 - whether it is there
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("vpps.torch needs PyTorch: pip install 'vpps[torch]', or torch alone") from error

from vpps.torch.cores import share_cores
from vpps.torch.module import Module

__all__ = ["Module", "share_cores"]
__dir__ = __all__.copy  # completion shows nothing else
