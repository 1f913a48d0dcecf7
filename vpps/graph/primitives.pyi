# Of the op table: python -m tests.graph.test_primitives
# mypy: disable-error-code="overload-overlap"
from typing import overload

from vpps.graph.derive import Label, Labels, One, Value
from vpps.ops.operand import Expression
from vpps.record.rows import Rows

__all__ = [
    "abs", "argmax", "binary_cross_entropy_with_logits", "cos", "cosine", "cross_entropy", "dot", "elu", "exp", "gelu",
    "hinge", "kl_div", "layer_norm", "leaky_relu", "log", "maximum", "minimum", "mse", "outer", "pick", "relu",
    "sigmoid", "silu", "sin", "softplus", "sqrt", "square", "squared_distance", "stop_gradient", "tanh", "transpose",
]

@overload
def tanh(x: One) -> Expression:
    """Hyperbolic tangent, element by element."""
@overload
def tanh(x: Value) -> Rows: ...
@overload
def sigmoid(x: One) -> Expression:
    """Logistic function 1 / (1 + exp(-x)), element by element."""
@overload
def sigmoid(x: Value) -> Rows: ...
@overload
def relu(x: One) -> Expression:
    """max(x, 0), element by element; the slope at 0 is 0."""
@overload
def relu(x: Value) -> Rows: ...
@overload
def exp(x: One) -> Expression:
    """e to the power of x, element by element."""
@overload
def exp(x: Value) -> Rows: ...
@overload
def log(x: One) -> Expression:
    """Natural logarithm, element by element."""
@overload
def log(x: Value) -> Rows: ...
@overload
def square(x: One) -> Expression:
    """x times x, element by element."""
@overload
def square(x: Value) -> Rows: ...
@overload
def leaky_relu(x: One, slope: float = 0.01) -> Expression:
    """x where positive, else slope x, element by element."""
@overload
def leaky_relu(x: Value, slope: float = 0.01) -> Rows: ...
@overload
def elu(x: One, alpha: float = 1.0) -> Expression:
    """x where positive, else alpha (exp(x) - 1), element by element."""
@overload
def elu(x: Value, alpha: float = 1.0) -> Rows: ...
@overload
def sqrt(x: One) -> Expression:
    """Square root, element by element."""
@overload
def sqrt(x: Value) -> Rows: ...
@overload
def abs(x: One) -> Expression:
    """Absolute value, element by element; the slope at 0 is 0."""
@overload
def abs(x: Value) -> Rows: ...
@overload
def softplus(x: One) -> Expression:
    """log(1 + exp(x)), element by element; stable for large x of either sign."""
@overload
def softplus(x: Value) -> Rows: ...
@overload
def gelu(x: One) -> Expression:
    """Gaussian error linear unit, the tanh form (Hendrycks & Gimpel 2016), element by element."""
@overload
def gelu(x: Value) -> Rows: ...
@overload
def silu(x: One) -> Expression:
    """x times the logistic function of x, also called swish, element by element."""
@overload
def silu(x: Value) -> Rows: ...
@overload
def sin(x: One) -> Expression:
    """Sine of an angle in radians, however large, element by element."""
@overload
def sin(x: Value) -> Rows: ...
@overload
def cos(x: One) -> Expression:
    """Cosine of an angle in radians, however large, element by element."""
@overload
def cos(x: Value) -> Rows: ...
@overload
def maximum(a: One, b: One) -> Expression:
    """The larger of a and b, element by element; where they are equal, a gets the gradient."""
@overload
def maximum(a: Value, b: Value) -> Rows: ...
@overload
def minimum(a: One, b: One) -> Expression:
    """The smaller of a and b, element by element; where they are equal, a gets the gradient."""
@overload
def minimum(a: Value, b: Value) -> Rows: ...
@overload
def stop_gradient(x: One) -> Expression:
    """x itself, through which no gradient flows."""
@overload
def stop_gradient(x: Value) -> Rows: ...
@overload
def transpose(m: One) -> Expression:
    """Rows of a computed matrix as columns; `m.T` is the same. Products in a cell use it without a copy."""
@overload
def transpose(m: Value) -> Rows: ...
@overload
def outer(a: One, b: One) -> Expression:
    """Outer product of two vectors: the matrix of shape (length of a, length of b) with elements a[i] b[j]."""
@overload
def outer(a: Value, b: Value) -> Rows: ...
@overload
def dot(a: One, b: One) -> Expression:
    """Inner product of two operands of one shape; a scalar."""
@overload
def dot(a: Value, b: Value) -> Rows: ...
@overload
def mse(a: One, b: One) -> Expression:
    """Mean of the squared differences of two operands of one shape; a scalar."""
@overload
def mse(a: Value, b: Value) -> Rows: ...
@overload
def cross_entropy(logits: One, label: Label) -> Expression:
    """Minus the log-softmax of the labelled class, stable for large logits; a scalar.

    Args:
        label: an int in [0, length of the vector), or an int argument of the cell.

    Raises:
        IndexRangeError: `label` is outside of that.
    """
@overload
def cross_entropy(logits: Value, label: Labels) -> Rows: ...
@overload
def squared_distance(a: One, b: One) -> Expression:
    """Sum of the squared differences of two operands of one shape; a scalar."""
@overload
def squared_distance(a: Value, b: Value) -> Rows: ...
@overload
def cosine(a: One, b: One) -> Expression:
    """Cosine of the angle between two operands of one shape; a scalar, 0 where one of them vanishes."""
@overload
def cosine(a: Value, b: Value) -> Rows: ...
@overload
def pick(x: One, i: Label) -> Expression:
    """Element of a vector at a per-vertex position; `x[i]` is the one at a fixed position.

    Args:
        i: an int in [0, length of the vector), or an int argument of the cell.

    Raises:
        IndexRangeError: `i` is outside of that.
    """
@overload
def pick(x: Value, i: Labels) -> Rows: ...
@overload
def hinge(logits: One, label: Label, margin: float = 1.0) -> Expression:
    """Sum over the other classes of max(0, margin + logits[class] - logits[label]).

    Args:
        label: an int in [0, length of the vector), or an int argument of the cell.

    Raises:
        IndexRangeError: `label` is outside of that.
    """
@overload
def hinge(logits: Value, label: Labels, margin: float = 1.0) -> Rows: ...
@overload
def binary_cross_entropy_with_logits(logits: One, targets: One) -> Expression:
    """Mean binary cross entropy of logits against targets in [0, 1]; a scalar, stable for large logits."""
@overload
def binary_cross_entropy_with_logits(logits: Value, targets: Value) -> Rows: ...
@overload
def layer_norm(x: One, eps: float = 1e-5) -> Expression:
    """(x - mean) / sqrt(variance + eps) of a vector (Ba et al. 2016); multiply and add parameters as you need."""
@overload
def layer_norm(x: Value, eps: float = 1e-5) -> Rows: ...
@overload
def kl_div(log_q: One, p: One) -> Expression:
    """Divergence sum(p (log p - log_q)) of the distribution p from the one whose logarithm is `log_q`; a scalar."""
@overload
def kl_div(log_q: Value, p: Value) -> Rows: ...
@overload
def argmax(x: One) -> Expression:
    """Position of the largest element (the first of equal ones) as a scalar float; it has no gradient."""
@overload
def argmax(x: Value) -> Rows: ...
