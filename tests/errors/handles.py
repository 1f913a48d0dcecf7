"""Wrong uses of models, handles and optimizers."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np

import vpps
import vpps.distributed
from tests.errors import expressions
from tests.errors.table import read


class World(expressions.World):
    """A model, a graph and a handle.

    Args:
        options: options of the handle.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.image = self.graph.input(np.ones(8), grad=True)
        self.S.trainable = False
        self.handle = vpps.Handle(self.model, target="cpu", **{"vps": 2} | options)

    def names(self) -> dict[str, Any]:
        made = {f.__name__: f for f in (fresh, closed, forward_only, evaluated, kept, trained, strange, inputs)}
        return {**super().names(), "loss": self.loss(), "copy": copy, "pickle": pickle, "at_rate": self.at_rate, **made}

    def at_rate(self, lr: float) -> None:
        """Make a step with another learning rate."""
        before = self.handle.optimizer.lr
        self.handle.optimizer.lr = lr
        try:
            self.handle.fb(self.graph, self.loss())
        finally:
            self.handle.optimizer.lr = before


def fresh(**options: Any) -> vpps.Handle:
    return World(**options).handle


def forward_only() -> vpps.Handle:
    return fresh(train=False)


def closed() -> vpps.Handle:
    handle = fresh()
    handle.close()
    return handle


def evaluated() -> tuple[vpps.Handle, vpps.Expression]:
    """Return a handle after an evaluation, and an input of the graph."""
    world = World()
    world.handle.forward(world.graph, [vpps.sum(world.W @ world.image)])
    return world.handle, world.image


def kept() -> vpps.Handle:
    """Return a handle that keeps a scalar's values."""
    world = World()
    world.handle.forward(world.graph, [world.loss()], keep=True)
    return world.handle


def trained(optimizer: Any = None, trainable: bool = True) -> None:
    """Train a different model for a step."""
    world = World(optimizer=optimizer or vpps.SGD(0.1))
    for parameter in world.model:
        parameter.trainable &= trainable
    world.handle.fb(world.graph, world.loss())


def strange() -> tuple[vpps.Graph, vpps.Expression]:
    """Return a graph for a different model."""
    other = vpps.Model()
    graph = vpps.Graph()
    row = graph.lookup(other.lookup("strange", (10, 8)), 3)
    return graph, vpps.sum(row * other.parameter("p", (8,)))


def inputs() -> tuple[vpps.Graph, vpps.Expression]:
    """Return a graph without parameters."""
    graph = vpps.Graph()
    return graph, vpps.sum(vpps.tanh(graph.input([1.0, 2.0])))


TOOLS = {"pickle": pickle, "strange": strange, "chip": vpps.ChipOptions, "init": vpps.distributed.init}
WITHOUT_HANDLE = read(r"""
[vpps.Model(seed)]
vpps.Model(seed=`1.5 | 'a' | None | True`)  # ModelError: seed*`*int
setattr(model, 'step', `-5 | 2.5 | '8'`)  # ModelError: model.step=`: expected an int, 0 to
setattr(model, 'step', 2**63)  # ModelError: model.step=9223372036854775808: expected an int, 0 to

[model.parameter, lookup, scope]
model.`parameter | lookup`('W', (2, 2))  # ModelError: 'W' is already*(4, 8)*scope
model.parameter(`'' | 3`, (2,))  # ModelError: ` is not a valid parameter or scope name
model.parameter('a\n', (2,))  # ModelError: name*printable
model.parameter('p', 3)  # ShapeError: 'p'*tuple*3
model.parameter('p', (3, 0))  # ShapeError: 'p'*positive*(3, 0)
model.parameter('p', (2.5,))  # ShapeError: 'p'*ints*(2.5,)
model.parameter('p', (2, 2, 2))  # ShapeError: 'p'*0 or 1 or 2*(2, 2, 2)
model.lookup('p', ())  # ShapeError: 'p'*()
model.scope('').__enter__()  # ModelError: '' is not a valid parameter or scope name
model['V']  # ModelError: 'V'*words, W, S, b
model.V  # AttributeError: no attribute 'V'
model.W  # AttributeError: no attribute 'W'; that parameter is model['W']
model(np.ones(3))  # ModelError: holds weights and cannot be called: your cells and functions compute
model.save('unused', {'epoch': 3})  # ModelError: strings*3
pickle.`dumps(W) | dumps(W, 0)`  # ModelError: cannot be pickled
graph.input([1, 2, 3]) + vpps.Model().parameter('b', (3,))  # ModelError: 'b'*no longer exists*reference

[model.parameter(init=)]
model.parameter('p', (2, 2), init='xavier')  # ModelError: 'p'*'xavier'*glorot_uniform*orthogonal
model.parameter('p', (3,), init='orthogonal')  # ModelError: 'p'*(3,)*matrix
model.parameter('p', (3, 2), init=np.zeros((2, 3)))  # ShapeError: 'p'*(3, 2)*(2, 3)
model.parameter('p', (3,), init=lambda rng, shape: rng.normal(size=4))  # ShapeError: 'p'*(3,)*(4,)
model.parameter('p', (3,), init=[0, np.nan, np.inf])  # ModelError: 'p'*2 of 3*NaN*(1,)
model.parameter('p', (1,), init=['x'])  # DtypeError: 'p'*numbers
model.parameter('p', (1,), init=True)  # DtypeError: 'p'*bool

[parameter.assign(array)]
W.assign(np.full((4, 8), np.nan))  # ModelError: 'W'*32 of 32*NaN*(0, 0)
b.assign([1, np.inf, 1, 1])  # ModelError: 'b'*1 of 4*(1,)
W.assign(np.ones((8, 4)))  # ShapeError: 'W'*(4, 8)*(8, 4)
b.assign(['a', 'b', 'c', 'd'])  # DtypeError: 'b'*numbers
b.assign([1j, 1, 1, 1])  # DtypeError: 'b'*complex
b.assign([1e39, 1, 1, 1])  # DtypeError: 'b'*range

[vpps.Handle(model, ...)]
vpps.Handle(None)  # HandleError: Handle(None): expected a vpps.Model
vpps.Handle(model, target=`'tpu' | None`)  # HandleError: target=`: expected 'auto', 'cpu', 'cuda' or 'simt'
vpps.Handle(model, policy='widest')  # HandleError: policy='widest'*sinks-last*sufficient
vpps.Handle(model, layout='readers')  # HandleError: Handle(layout=...): removed
vpps.Handle(model, on_nonfinite='ignore')  # HandleError: on_nonfinite='ignore'*'warn'*'raise'
vpps.Handle(model, optimizer='adam')  # HandleError: optimizer='adam'*vpps.Adam()
vpps.Handle(model, optimizer=vpps.Adam)  # HandleError: optimizer=*vpps.Adam()
vpps.Handle(model, clip_norm=`0 | '1'`)  # HandleError: clip_norm=`*positive
vpps.Handle(model, clip_norm=np.nan)  # HandleError: clip_norm=nan*positive
vpps.Handle(model, vps=`0 | -1 | 1025 | 1.5 | '2' | True`)  # HandleError: vps=`*1 to 1024
vpps.Handle(model, pool_limit=`0 | -1 | '1G'`)  # HandleError: pool_limit=`: expected a positive int, bytes
vpps.Handle(model, pool_limit=1e9)  # HandleError: pool_limit=1000000000.0*bytes
vpps.Handle(model, schedule=3)  # HandleError: schedule=3: expected a string
vpps.Handle(model, schedule='x')  # HandleError: schedule='x': expected one of vector, paper
vpps.Handle(model, `verify='no' | train=None`)  # HandleError: `: expected True or False
vpps.Handle(model, ema=1)  # HandleError: ema=1: expected a number in [0, 1), such as 0.999, or None
vpps.Handle(model, ema=`-0.1 | True`)  # HandleError: ema=`: expected a number in [0, 1)
vpps.Handle(model, ema=np.nan)  # HandleError: ema=nan: expected a number in [0, 1)
vpps.Handle(model, ema=0.9, train=False)  # HandleError: ema=0.9: expected None, as the handle is forward-only
vpps.Handle(model, onchip={})  # HandleError: onchip={}: expected vpps.ChipOptions(...)
vpps.Handle(model, target='cpu', onchip=vpps.ChipOptions(groups=2))
    # HandleError: target 'cpu' keeps weights and their gradients in memory
vpps.Handle(model, passes='all')  # HandleError: passes='all': expected vpps.Passes(...)
vpps.Handle(model, example=1)  # HandleError: example=1: expected (graph, loss), as for handle.fb
vpps.Handle(model, example=graph)  # HandleError: expected (graph, loss)
vpps.Handle(model, target='simt', vps=2, example=strange())  # ModelError: another model
vpps.Handle(model, dtype='bfloat16')  # TypeError: Handle() *'dtype'; precision='bf16' rounds the factors of products

[vpps.Handle(model, precision=), vpps.specialize]
vpps.Handle(model, precision=16)  # HandleError: precision=16: expected one of float32, bf16, tf32, 3xtf32, or a dict
vpps.Handle(model, precision=None)  # HandleError: precision=None: expected one of float32, bf16, tf32, 3xtf32, or a
vpps.Handle(model, precision=`'bf 16' | {'W': 16}`)  # HandleError: precision=`: expected one of
vpps.Handle(model, precision='bfloat16')  # HandleError: precision='bfloat16': *; 'bf16' rounds the factors of
vpps.Handle(model, precision=torch.bfloat16)  # HandleError: precision=torch.bfloat16: *; 'bf16' rounds the factors
vpps.Handle(model, precision={'*': 'fp16'})  # HandleError: {'*': 'fp16'}: *; use 'bf16', which has the range of float32
vpps.Handle(model, precision={'Wx': 'bf16'})  # HandleError: no parameter 'Wx'; did you mean 'W'?
vpps.Handle(model, precision={'V1': 'bf16'})  # HandleError: there is no parameter 'V1'; there are W
vpps.Handle(model, precision={'*': 'bf16', 'b': 'float32'})
    # HandleError: 'b' is not a matrix that multiplies vectors, and all else is float32; leave it out
vpps.Handle(model, precision={'*': 'bf16', 'words': 'float32'})  # HandleError: 'words' is not a matrix that multiplies
vpps.`Handle | specialize`(model, precision={'W': 'tf32'}, target='cpu')
    # HandleError: precision={'W': 'tf32'}: target 'cpu' has no tensor cores and multiplies in float32 or bf16; use
vpps.specialize(model, precision={'V': 'bf16'})  # HandleError: precision={'V': 'bf16'}: there is no parameter 'V'
vpps.specialize(model, device='T4', precision=`'bf16' | '3xtf32' | {'W': 'tf32'}`)
    # HandleError: precision=`: T4 is sm_75, and this takes tensor cores of sm_80 or newer; use 'float32'

[vpps.specialize(model, example, ...)]
vpps.specialize(vpps.Graph())  # HandleError: expected a vpps.Model
vpps.specialize(vpps.Model())  # HandleError: declare them first
vpps.specialize(model, `graph | (s, graph)`)  # HandleError: expected (graph, loss)
vpps.specialize(model, (graph, y))  # GraphError: the loss must be a scalar
vpps.specialize(model, (vpps.Graph(), s))  # GraphError: another graph
vpps.specialize(model, target='gpu')  # HandleError: target='gpu': expected 'cpu', 'cuda' or 'simt'
vpps.specialize(model, rows_per_warp=3)  # HandleError: rows_per_warp=...): there is no such option; there are ownership
vpps.specialize(model, sms=0)  # HandleError: sms=0: expected an int, 1 to 4096
vpps.specialize(model, groups=0)  # HandleError: groups=0: expected an int, at least 1
vpps.specialize(model, vps=1000)  # HandleError: do not run side by side on H200
vpps.specialize(model, device='GTX 1080')  # HandleError: device 'GTX 1080' is not known
vpps.specialize(model, device='A100', arch='sm_86')  # HandleError: the A100 runs code for sm_
vpps.specialize(model, device='H100', arch='sm_80')  # HandleError: the H100 runs code for sm_
vpps.specialize(model, device='T4', arch='sm_90')  # HandleError: the T4 runs code for sm_
vpps.specialize(model, arch='sm_60')  # HandleError: arch='sm_60'*sm_75, sm_80*describe it by device=
vpps.specialize(model, arch=`'90' | 'compute_90' | 'sm_' | 'sm90'`)  # HandleError: expected sm_ and digits
vpps.specialize(model, optimizer=0.1)  # HandleError: optimizer=0.1: expected an optimizer
vpps.specialize(model, (graph, s), tiers={'X': 'registers'})  # HandleError: there is no such matrix; there are W
vpps.specialize(model, (graph, s), tiers={'Wx': 'L2'})  # HandleError: there is no such matrix; did you
vpps.specialize(model, blocks_per_sm=2)  # HandleError: specialize(..., blocks_per_sm=...): removed, as*leave it out
vpps.ChipOptions(blocks_per_sm=2)  # HandleError: ChipOptions(blocks_per_sm=...): removed, as*leave it out
vpps.specialize(model, (graph, s), tile=3)  # HandleError: specialize(..., tile=...): removed, as*leave it out
vpps.ChipOptions(transposed='atomic')  # HandleError: ChipOptions(transposed=...): removed, as*leave it out
vpps.specialize(model, gradients='tiles')  # HandleError: specialize(..., gradients=...): removed, as*leave it out
vpps.ChipOptions(gradients='gemm')  # HandleError: ChipOptions(gradients=...): removed, as*leave it out

[vpps.Handle(onchip=)]
vpps.Handle(model, target='cpu', onchip=chip(rpw=4))  # HandleError: target 'cpu' keeps weights and their
vpps.Handle(model, target='simt', vps=3, onchip=chip(groups=2))  # HandleError: vps=3 with groups=2*vps=2
vpps.Handle(model, target='simt', vps=2, onchip=chip(groups=4))  # HandleError: vps=2 with groups=4*vps=4
vpps.Handle(model, target='simt', onchip=chip(groups=0))  # HandleError: groups=0*from 1 to 7
vpps.Handle(model, target='simt', onchip=chip(groups=8))  # HandleError: groups=8*from 1 to 7
vpps.Handle(model, target='simt', onchip=chip(groups=2), schedule='paper')  # HandleError: groups=2*paper*'vector'

[vpps.distributed.init(backend, shards, ...)]
init(backend=`'nccl' | 3`)  # DistributedError: init(backend=`): expected one of mpi, torch, alone
init(shards=`0 | 1.5`)  # DistributedError: init: shards
init(timeout=`0 | 'long'`)  # DistributedError: init(timeout=`): expected seconds
init(timeout=np.inf)  # DistributedError: init(timeout=inf): expected seconds
init(check_every=0)  # DistributedError: init: check_every
init(bind='yes')  # DistributedError: init: bind

[vpps.SGD, Momentum, Adam]
vpps.Adam(`'0.1' | [0.1, 0.2] | None`)  # ModelError: Adam(lr=`)*a function of the number*vpps.Handle(model, vpps.Adam(
vpps.Adam(model)  # ModelError: Adam(lr=<vpps.Model*vpps.Handle(model, vpps.Adam(
vpps.Handle(model, vpps.SGD(lr=`-1 | True`))  # ModelError: SGD(lr=`): expected a number >= 0
vpps.Handle(model, vpps.SGD(lr=np.`nan | inf`))  # ModelError: SGD(lr=`): expected a number >= 0
vpps.Handle(model, vpps.SGD(lr=1e300))  # ModelError: SGD(lr=1e+300): expected a number >= 0
vpps.Handle(model, vpps.SGD(0.1, -0.1))  # ModelError: weight_decay=-0.1*>= 0
vpps.Handle(model, vpps.Momentum(0.1, momentum=1))  # ModelError: Momentum(momentum=1)
vpps.Handle(model, vpps.Adam(`beta1=1.0 | beta2=-0.1`))  # ModelError: Adam(`)*[0, 1)
vpps.Handle(model, vpps.Adam(beta1=1 - 1e-9))  # ModelError: beta1
vpps.Handle(model, vpps.Adam(beta2=1 - 1e-9))  # ModelError: beta2
vpps.Handle(model, vpps.Adam(eps=0))  # ModelError: Adam(eps=0)*positive
vpps.Handle(model, vpps.Adam(eps=1e-50))  # ModelError: eps
""")

MISTAKES = read(r"""
[handle.fb(graph, loss)]
handle.`fb | gradients`(graph, y)  # GraphError: the loss must be a scalar*(4,)*vpps.sum(x)*vpps.mean(x)*x[i]
handle.disassemble(graph, y)  # GraphError: scalar*(4,)
handle.fb(graph, matrix)  # GraphError: scalar*(8, 8)
handle.fb(graph, vpps.cross_entropy(rows, labels))  # GraphError: the loss must be a scalar
handle.fb(graph, vpps.sum(elsewhere))  # GraphError: loss: *of 7 vertices*another graph*of 14 vertices
handle.fb(graph, `1.0 | None`)  # GraphError: loss: expected an expression, got `
handle.fb(graph, [s])  # GraphError: loss: expected an expression, got [
handle.fb(graph, b)  # GraphError: loss: expected an expression, got *'b'
handle.fb(vpps.Graph(), s)  # GraphError: fb*empty
handle.fb(model, s)  # GraphError: fb: expected a vpps.Graph, got *Model
handle.fb(*inputs())  # NoGradientError: the loss depends on no trainable parameter*use handle.forward
handle.fb(graph, `vpps.sum(matrix) | matrix[0][0]`)  # NoGradientError: no trainable parameter*handle.forward
trained(trainable=False)  # NoGradientError: no trainable parameter*handle.forward
handle.fb(*strange())  # ModelError: uses *'strange'*belongs to another model than the handle's

[handle.forward(graph, wanted)]
handle.forward(vpps.Graph(), [])  # GraphError: forward*empty
handle.forward(graph, s)  # GraphError: list*[expression]
handle.forward(graph, rows)  # GraphError: expected a list of expressions
handle.forward(graph, [s, elsewhere])  # GraphError: forward*another graph
handle.forward(graph, [1.0])  # GraphError: forward*1.0
handle.forward(*[[g, [e]] for g, e in [strange()]][0])  # ModelError: 'strange'*another model
handle.forward(graph, [], keep=True)  # NoGradientError: nothing is wanted
handle.forward(graph, [matrix], keep=True)  # NoGradientError: the wanted values depend on no *leave keep= and update=

[handle.value, input_gradient]
handle.value(elsewhere)  # GraphError: value*another graph
handle.value(b)  # GraphError: value: expected an expression*'b'
handle.value(vpps.tanh(x))  # GraphError: value: *not computed by the latest call: it was recorded later; call fb
handle.value(vpps.tanh(rows))  # GraphError: it was recorded later
handle.device_value(rows)  # GraphError: device_value: *use value
handle.input_gradient(`x | matrix`)  # GraphError: input_gradient: *not a graph.input(array, grad=True)
handle.input_gradient(rows)  # GraphError: not a graph.input(array, grad=True) or graph.rows
fresh().`value | input_gradient`(loss)  # GraphError: `: nothing has been computed*fb
(lambda handle, image: handle.input_gradient(image))(*evaluated())  # GraphError: input_gradient*forward

[handle.backward(seeds)]
handle.backward(s)  # HandleError: nothing was kept*keep=True*handle.fb(graph, loss)
kept().backward([])  # ShapeError: 0 seeds are given for 1 expressions
kept().backward([np.ones(2)])  # ShapeError: has shape (2,); expected ()
kept().backward(['x'])  # DtypeError: the seed of
kept().backward(1.0)  # DtypeError: backward: expected expressions in a list
handle.backward([1.0], kept().kept)  # HandleError: another handle computed it
handle.backward([1.0], 'kept')  # HandleError: expected what handle.kept was

[handle.apply(gradients)]
handle.apply({'V': np.ones(3)})  # ModelError: 'V': the model has no such parameter
handle.apply({'b': np.ones(3)})  # ShapeError: 'b': expected shape (4,), got (3,)
handle.apply({'b': 'x'})  # DtypeError: 'b'
handle.apply({'b': ([0], np.ones((1, 2)))})  # DtypeError: (rows, values) is for tables
handle.apply({'words': ([10], np.ones((1, 8)))})  # IndexRangeError: row 10 is out of range
handle.apply({'words': ([0.5], np.ones((1, 8)))})  # DtypeError: rows are ints
handle.apply({'words': ([0, 1], np.ones((1, 8)))})  # ShapeError: expected shape (2, 8)
handle.apply({'S': np.ones((8, 8))})  # ModelError: not trainable; leave its gradient out
handle.apply([])  # ModelError: expected a dict by name

[a handle that is closed, forward-only, copied; a second one]
closed().`fb(graph, loss) | sync_get_latest_loss() | forward(graph, [s]) | value(s)`  # HandleError: closed*new one
closed().`gradients(graph, loss) | input_gradient(image) | disassemble(graph, loss)`  # HandleError: closed*new one
forward_only().`fb | gradients | disassemble`(graph, loss)  # HandleError: `*forward-only*train=False
forward_only().forward(graph, [loss], keep=True)  # HandleError: forward: this handle is forward-only
vpps.Handle(model)  # HandleError: already has an open training handle*close*train=False
`pickle.dumps | copy.copy | copy.deepcopy`(handle)  # HandleError: handle cannot be pickled or copied*model.save(path)

[handle.optimizer, clip_norm]
at_rate(`-1.0 | '0.1'`)  # ModelError: SGD(lr=`)*>= 0
at_rate(np.nan)  # ModelError: SGD(lr=nan)
setattr(handle, 'clip_norm', 0)  # HandleError: clip_norm=0*positive
setattr(handle, 'optimizer', vpps.Adam())  # HandleError: Adam*SGD*close
setattr(handle, 'optimizer', vpps.SGD(lr=-1))  # ModelError: SGD(lr=-1)
trained(vpps.SGD(0.1, groups={'W': {'momentum': 0.9}}))  # ModelError: group 'W' sets momentum; hyper-parameters are lr
trained(vpps.SGD(0.1, groups={'W': {'lr': -1}}))  # ModelError: SGD(lr=-1)
trained(vpps.SGD(lambda update: float('nan')))  # ModelError: SGD(lr=nan)
trained(vpps.Adam(groups={'*': {}, 'wrods': {}}))  # ModelError: group 'wrods': no parameter *fits it; did you
trained(vpps.Adam(groups={'other': {}}))  # ModelError: 'other': no parameter of the model fits it; there are words, W
trained(vpps.Adam(groups={'w*': {}, 'words': {}}))  # ModelError: 'words'*belong to 'w*', which comes before it
trained(vpps.SGD(0.1, groups=3))  # ModelError: SGD(groups=3): expected hyper-parameters by pattern
trained(vpps.SGD(0.1, groups={'W': 0.1}))  # ModelError: SGD(groups={'W': 0.1}): expected
""")
