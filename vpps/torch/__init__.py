"""PyTorch integration: a vpps graph as a layer of a PyTorch network.

    net = vpps.torch.Module(model)  # a torch.nn.Module; its parameters are the model's weights
    loss = net.loss(graph, expression)  # one launch: forward and gradients
    hidden = net(graph, rows)  # tensors, through which gradients flow

module: the public class. function: calls as nodes of PyTorch's autograd graph, and conversion of arrays and tensors.
weights: parameters as tensors in shared memory. state: state-dict entries besides weights. cores: cores shared by
PyTorch's threads and vpps. No other package of vpps imports this one, because it needs PyTorch.
"""

try:
    import torch as _torch  # noqa: F401 - tests that it is installed
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("vpps.torch needs PyTorch: pip install 'vpps[torch]', or torch alone") from error

from vpps.torch import on_device as _on_device  # noqa: F401 - makes its stacks known
from vpps.torch.cores import share_cores
from vpps.torch.module import Module
from vpps.torch.recurrent import GRU, LSTM, RNN, GRUCell, LSTMCell

__all__ = ["GRU", "LSTM", "RNN", "GRUCell", "LSTMCell", "Module", "share_cores"]
__dir__ = __all__.copy  # completion shows nothing else
