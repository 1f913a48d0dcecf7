"""What users of other libraries try on an object of vpps, and what does it here: one table."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import wraps
from operator import attrgetter
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

_EVALUATES = "handle.forward(graph, [x]) evaluates it, and after fb handle.value(x) reads it"
_TRAINS = "handle.fb(graph, loss) runs forward, backward and the update"
_GRADIENTS = "handle.gradients(graph, loss) returns the gradients of the parameters"
_ELSEWHERE = "the handle says where all is computed: vpps.Handle(model, target='cuda')"
_ROUNDS = "the handle says what products round: vpps.Handle(model, precision='bf16')"
_PARAMETERS = "parameters are the model's: for p in model, each with p.name, p.shape and p.numpy()"
_VALUES = "value npvalue vec_value scalar_value item tolist cpu"
_FUNCTIONS = (
    "sum mean max min exp log sqrt square abs tanh sigmoid relu gelu softmax log_softmax dot reshape clamp split "
    "argmax logsumexp maximum minimum outer"
)

# Classes, names, hint; {name} in it is the name that was tried.
_TABLE = (
    ("Expression Rows", f"{_VALUES} numpy", _EVALUATES),
    ("Expression Rows", "detach data", f"vpps.stop_gradient(x) lets no gradient through; {_EVALUATES}"),
    ("Expression Rows", "backward", _TRAINS),
    ("Expression Rows Parameter", "grad gradient", _GRADIENTS),
    (
        "Expression Rows",
        "requires_grad requires_grad_ retain_grad",
        "vpps.stop_gradient(x) lets no gradient through; graph.input(array, grad=True) has handle.input_gradient(x)",
    ),
    ("Expression Rows Parameter", "size dim ndim numel", "x.shape is its shape"),
    ("Expression Rows Parameter", _FUNCTIONS, "that is a function: vpps.{name}"),
    ("Expression Rows Parameter", "view unsqueeze squeeze flatten", "vpps.reshape(x, shape) gives it another shape"),
    ("Expression Rows Parameter", "chunk", "vpps.split(x, n) cuts it into n parts"),
    ("Expression Rows Parameter", "pow", "there are x ** 2 and x ** 0.5"),
    ("Expression Rows Parameter", "norm", "vpps.sqrt(vpps.sum(x ** 2)) is it"),
    ("Expression Rows Parameter", "masked_fill", "vpps.where(condition, a, b) chooses"),
    ("Expression Rows", "clone copy", "nothing writes to it, so there is no need for a copy"),
    ("Expression Rows Parameter", "dtype", "all values are float32"),
    ("Expression Rows Parameter Model Layer", "device", _ELSEWHERE),
    ("Expression Rows Parameter", "mm mv matmul", "the operator does it: A @ x"),
    ("Expression Rows Parameter", "t transpose", "x.T is the transpose"),
    ("Parameter", f"{_VALUES} data detach", "p.numpy() is a copy of its weights, and p.assign(array) replaces them"),
    ("Parameter", "copy_ set_value", "p.assign(array) replaces its weights"),
    ("Parameter", "requires_grad requires_grad_", "p.trainable = False freezes it"),
    ("Model Handle Layer", "parameters named_parameters", _PARAMETERS),
    ("Model", "modules children", _PARAMETERS),
    ("Model Layer", "forward", "cells and functions of yours compute, and handle.forward(graph, [x]) evaluates"),
    (
        "Layer",
        "weight bias",
        "parameters are attributes such as layer.W; layer.state_dict() copies them by PyTorch's names, and "
        "layer.load replaces them",
    ),
    ("Handle", "save load restore", "the model has the weights: model.save(path), model.restore(path)"),
    ("Handle", "loss", "handle.sync_get_latest_loss() is that of the latest fb, which returns that of the call before"),
    ("Handle", "device", "handle.target is it"),
    ("Handle", "dtype", "handle.precision is that of products; all else is float32"),
    ("Model", "numel", "model.n_weights counts them, and model.summary() says more"),
    (
        "Model Handle",
        "state_dict",
        "model.numpy() copies all weights by name, and model.save(path) writes the state, too",
    ),
    (
        "Model Handle",
        "load_state_dict",
        "model.restore(path) reads what model.save wrote, model[name].assign(array) sets one parameter, and layers of "
        "vpps.nn load what PyTorch's have: layer.load(weights)",
    ),
    ("Layer", "load_state_dict", "layer.load(weights) takes a state_dict of PyTorch"),
    ("Model Layer", "requires_grad_", "p.trainable = False freezes one, for each p of the model"),
    ("Model Handle Layer", "train eval", "handle.fb trains, and handle.forward evaluates, without dropout"),
    ("Expression Rows Parameter Model Handle Layer", "to cuda", _ELSEWHERE),
    ("Model Handle Layer", "cpu", _ELSEWHERE),
    ("Model", "half double bfloat16", f"all weights are float32; {_ROUNDS}"),
    ("Model", "add_parameters", "model.parameter(name, shape) declares one"),
    ("Model", "add_lookup_parameters", "model.lookup(name, shape) declares one"),
    (
        "Model Handle Optimizer",
        "zero_grad",
        "no gradient outlives its step: there is none to reset; handle.fb(graph, loss, accumulate=True) adds them up",
    ),
    ("Handle Optimizer", "step update", _TRAINS),
    (
        "Optimizer",
        "param_groups add_param_group",
        "groups={'words': {'lr': 0.01}} gives parameters rates by their names",
    ),
    (
        "Optimizer",
        "state_dict load_state_dict",
        "its moments are the model's: model.save(path) writes and model.restore(path) reads them",
    ),
    ("Handle", "lr learning_rate", "handle.optimizer.lr = 0.01 sets the rate; lr may be a schedule, too"),
    ("Handle", "clip", "handle.clip_norm = 5.0 bounds the global norm of all gradients"),
    (
        "Optimizer",
        "learning_rate",
        "optimizer.lr = 0.01 sets the rate, or a schedule: a function of the update's number",
    ),
    ("Adam", "betas", "they are optimizer.beta1 and optimizer.beta2"),
    ("vpps", "no_grad inference_mode", "handle.forward(graph, [x]) computes no gradients"),
    ("vpps", "tensor Tensor as_tensor from_numpy inputTensor", "graph.input(array) brings data into a graph"),
    ("vpps", "cat concatenate", "vpps.concat joins vectors"),
    ("vpps", "mm matmul", "the operator does it: A @ x"),
    ("vpps", "save load", "model.save(path) writes a checkpoint, and model.restore(path) reads it"),
    ("vpps", "manual_seed", "vpps.Model(seed=1) decides initial values and dropout"),
    ("vpps", "device cuda", _ELSEWHERE),
    ("vpps", "bfloat16 float16 half amp autocast GradScaler", _ROUNDS),
    ("vpps", "ParameterCollection", "vpps.Model() is it"),
    ("vpps", "zeros", "graph.zeros(n) is a vector of zeros"),
    ("vpps", "pow", "there are x ** 2 and x ** 0.5"),
    ("vpps", "optim", "optimizers are classes of vpps, such as vpps.Adam"),
    ("vpps", "renew_cg ComputationGraph", "every mini-batch has a vpps.Graph() of its own"),
    (
        "vpps.nn",
        "Module ModuleList",
        "a class of yours holds parameters of a model, and its methods may be cells: @vpps.cell",
    ),
    ("vpps.nn", "Parameter", "model.parameter(name, shape) declares one"),
    ("vpps.nn", "Sequential", "vpps.nn.MLP has a hidden layer; a function of yours calls layers one after the other"),
    ("vpps.nn", "Dropout", "that is a function: vpps.dropout(x, rate)"),
    ("vpps.nn", "LayerNorm", "that is a function: vpps.layer_norm(x)"),
    ("vpps.nn", "LSTMCell", "vpps.nn.LSTM(model, input_size, hidden_size).step is it"),
    ("vpps.nn", "GRUCell", "vpps.nn.GRU(model, input_size, hidden_size).step is it"),
    ("vpps.nn", "functional", "functions are those of vpps, such as vpps.relu"),
    ("vpps.nn", "CrossEntropyLoss", "that is a function: vpps.cross_entropy(logits, label)"),
    ("vpps.nn", "MSELoss", "that is a function: vpps.mse(x, y)"),
    ("vpps.nn", "BCEWithLogitsLoss", "that is a function: vpps.binary_cross_entropy_with_logits(logits, targets)"),
    ("vpps.nn", "ReLU Tanh Sigmoid GELU", "that is a function, such as vpps.relu"),
)

_OPTIMIZERS = "SGD Momentum Nesterov Adam AdamW Adagrad RMSprop"

# Classes, functions and methods, keyword arguments, hint; "-" is one that does not fit otherwise.
_ARGUMENTS = (
    (_OPTIMIZERS, "learning_rate", "it is called lr"),
    (_OPTIMIZERS, "params parameters model", "the handle has the model: vpps.Handle(model, vpps.Adam(lr=0.01))"),
    ("Adam AdamW", "betas", "they are called beta1 and beta2"),
    ("RMSprop", "alpha", "it is called rho"),
    ("SGD RMSprop", "momentum nesterov", "vpps.Momentum(lr=0.1, momentum=0.9) has it, and vpps.Nesterov"),
    ("Handle", "lr learning_rate weight_decay", "the optimizer has it: vpps.Handle(model, vpps.Adam(lr=0.01))"),
    ("Handle", "device", _ELSEWHERE),
    ("Handle", "dtype amp autocast mixed_precision", "precision='bf16' rounds what products multiply"),
    ("dropout", "p", "it is called rate"),
    ("dropout", "training train", "it is on in handle.fb, and off in handle.forward"),
    ("softmax log_softmax logsumexp", "dim axis", "it goes over the elements of a vector, of rows over those of each"),
    ("sum mean max min", "dim axis keepdim", "it goes over all elements of one expression, or over a list or rows"),
    ("max min", "-", "vpps.{owner}imum(x, y) is that of two, and vpps.{owner}([x, y]) of a list"),
    ("concat stack", "dim axis", "concat joins vectors end to end and matrices row after row, stack makes rows"),
    ("concat stack sum mean logsumexp", "-", "expressions come in a list: vpps.{owner}([x, y])"),
    ("forward gradients", "training", "it is called train"),
    ("forward", "-", "the graph comes first: handle.forward(graph, [x])"),
    ("fb gradients", "-", "the graph comes first: handle.{owner}(graph, loss)"),
)

# Options, words in what is given for them, hint.
_OF_OPTIONS = (
    ("precision", "bfloat16 mixed amp auto", "'bf16' rounds what products multiply, and all else is float32"),
    ("precision", "float16 fp16 half", "there is 'bf16', with the range of float32, so that no loss is scaled"),
    ("precision", "fp32 single full", "'float32' is it"),
    ("precision", "tensorfloat32 high medium", "'tf32' is it, and '3xtf32' is about as exact as float32"),
    ("precision", "float64 fp64 double", "there is none wider than 'float32'"),
)


def _by_name(table: tuple[tuple[str, str, str], ...]) -> dict[tuple[str, str], str]:
    return {
        (owner, name): hint.replace("{name}", name).replace("{owner}", owner)
        for owners, names, hint in table
        for owner in owners.split()
        for name in names.split()
    }


HINTS = _by_name(_TABLE)
"""By class or package, and name."""

ARGUMENTS = _by_name(_ARGUMENTS)
"""By class, function or method, and keyword."""

VALUES = _by_name(_OF_OPTIONS)
"""By option, and a word in its value."""


def habit(option: str, value: object) -> str:
    """What to say of a value that another library takes for an option; "" where there is nothing."""
    words = re.findall(r"\w+", str(value).lower())
    return next((f"; {VALUES[option, word]}" for word in words if (option, word) in VALUES), "")


def hinted(function: F) -> F:
    """The function, whose TypeError for a call that does not fit says what does."""
    owner = function.__qualname__.removesuffix(".__init__").rpartition(".")[2]
    hints = {name: hint for (of, name), hint in ARGUMENTS.items() if of == owner}

    def called(*arguments: Any, **options: Any) -> Any:
        try:
            return function(*arguments, **options)
        except TypeError as error:
            names = options if "unexpected keyword" in str(error) else "-"
            hint = next((hints[name] for name in names if name in hints), None)
            if hint is None or (error.__traceback__ and error.__traceback__.tb_next):  # raised further in
                raise
            raise TypeError(f"{owner}{str(error).removeprefix(function.__qualname__)}; {hint}") from None

    # Sphinx reads the hints of overloads by the globals of what it documents: those of the function.
    made = FunctionType(called.__code__, function.__globals__, closure=called.__closure__)
    return wraps(function)(made)  # type: ignore[return-value]


_SET = frozenset("bias betas clip data grad learning_rate lr requires_grad weight".split())
"""Names that are not only asked for but set, which where an object has a `__dict__` would go without a word."""


class Hinting:
    """Base of what says, asked for an attribute of another library or to set it, what does the same here."""

    __slots__ = ()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name in _SET:
            if (cls.__name__, name) in HINTS and cls.__module__.startswith("vpps."):
                setattr(cls, name, _Unsettable(name))

    if not TYPE_CHECKING:  # for editors and type checkers an unknown attribute is an error

        def __getattr__(self, name: str) -> Any:
            if (hint := hint_of(type(self), name) or self._hint_of(name)) is None:
                return object.__getattribute__(self, name)  # raises again, in Python's words
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}; {hint}")

    def _hint_of(self, name: str) -> str | None:
        """What this very object has under that name."""
        return None


def read_only(slot: str) -> Any:
    """An attribute that is read from a slot and cannot be set: what was checked when it was made remains true."""
    return property(attrgetter(slot))


class _Unsettable:
    """An attribute that a class has only to refuse that it is set. A subclass of a user's may have one of that name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, x: Any, kind: type) -> Any:
        try:
            return vars(x)[self._name]
        except (KeyError, TypeError):
            raise AttributeError(self._name) from None  # then __getattr__ is asked

    def __set__(self, x: Any, value: object) -> None:
        if type(x).__module__.startswith("vpps.") or not hasattr(x, "__dict__"):
            raise AttributeError(f"{x!r}.{self._name} cannot be set; {hint_of(type(x), self._name)}")
        vars(x)[self._name] = value


def missing_from(package: str, name: str) -> AttributeError:
    """The error for what a package does not have."""
    hint = f"; {HINTS[package, name]}" if (package, name) in HINTS else ""
    return AttributeError(f"module {package!r} has no attribute {name!r}{hint}")


def hint_of(kind: type, name: str) -> str | None:
    """What does here what `name` does in another library; None where that is not known, or a class derived from ours
    has a property of that name, which says itself why it fails."""
    for base in kind.__mro__:
        if (base.__name__, name) in HINTS:
            return HINTS[base.__name__, name]
        if name in vars(base):
            break
    return None
