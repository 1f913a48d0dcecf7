# Of the op table: python -m tests.graph.test_primitives
from vpps.graph.derive import Value
from vpps.ops.operand import Expression, Index

__all__ = [
    "abs", "argmax", "binary_cross_entropy_with_logits", "cosine", "cross_entropy", "dot", "elu", "exp", "gelu",
    "hinge", "kl_div", "layer_norm", "leaky_relu", "log", "logsumexp", "maximum", "minimum", "mse", "outer", "pick",
    "relu", "sigmoid", "softplus", "sqrt", "square", "squared_distance", "stop_gradient", "tanh", "transpose",
]

def tanh(x: Value) -> Expression:
    """Hyperbolic tangent, element by element."""
def sigmoid(x: Value) -> Expression:
    """Logistic function 1 / (1 + exp(-x)), element by element."""
def relu(x: Value) -> Expression:
    """max(x, 0), element by element; the slope at 0 is 0."""
def exp(x: Value) -> Expression:
    """e to the power of x, element by element."""
def log(x: Value) -> Expression:
    """Natural logarithm, element by element."""
def square(x: Value) -> Expression:
    """x times x, element by element."""
def leaky_relu(x: Value, slope: float = 0.01) -> Expression:
    """x where positive, else slope x, element by element."""
def elu(x: Value, alpha: float = 1.0) -> Expression:
    """x where positive, else alpha (exp(x) - 1), element by element."""
def sqrt(x: Value) -> Expression:
    """Square root, element by element."""
def abs(x: Value) -> Expression:
    """Absolute value, element by element; the slope at 0 is 0."""
def softplus(x: Value) -> Expression:
    """log(1 + exp(x)), element by element; stable for large x of either sign."""
def gelu(x: Value) -> Expression:
    """Gaussian error linear unit, the tanh form (Hendrycks & Gimpel 2016), element by element."""
def maximum(a: Value, b: Value) -> Expression:
    """The larger of a and b, element by element; where they are equal, a gets the gradient."""
def minimum(a: Value, b: Value) -> Expression:
    """The smaller of a and b, element by element; where they are equal, a gets the gradient."""
def stop_gradient(x: Value) -> Expression:
    """x itself, through which no gradient flows."""
def transpose(m: Value) -> Expression:
    """Rows of a computed matrix as columns; `m.T` is the same. Products in a cell read it without making it."""
def outer(a: Value, b: Value) -> Expression:
    """Outer product of two vectors: the matrix of shape (length of a, length of b) with elements a[i] b[j]."""
def dot(a: Value, b: Value) -> Expression:
    """Inner product of two operands of one shape; a scalar."""
def mse(a: Value, b: Value) -> Expression:
    """Mean of the squared differences of two operands of one shape; a scalar."""
def cross_entropy(logits: Value, label: int | Index) -> Expression:
    """Minus the log-softmax of the labelled class, stable for large logits; a scalar.

    Args:
        label: an int in [0, length of the vector), or an int argument of the cell.

    Raises:
        IndexRangeError: `label` is outside of that.
    """
def squared_distance(a: Value, b: Value) -> Expression:
    """Sum of the squared differences of two operands of one shape; a scalar."""
def cosine(a: Value, b: Value) -> Expression:
    """Cosine of the angle between two operands of one shape; a scalar, 0 where one of them vanishes."""
def logsumexp(x: Value) -> Expression:
    """Logarithm of the sum of exponentials of a vector; a scalar, stable for large elements."""
def pick(x: Value, i: int | Index) -> Expression:
    """Element of a vector at a per-vertex position; `x[i]` is the one at a fixed position.

    Args:
        i: an int in [0, length of the vector), or an int argument of the cell.

    Raises:
        IndexRangeError: `i` is outside of that.
    """
def hinge(logits: Value, label: int | Index, margin: float = 1.0) -> Expression:
    """Sum over the other classes of max(0, margin + logits[class] - logits[label]).

    Args:
        label: an int in [0, length of the vector), or an int argument of the cell.

    Raises:
        IndexRangeError: `label` is outside of that.
    """
def binary_cross_entropy_with_logits(logits: Value, targets: Value) -> Expression:
    """Mean binary cross entropy of logits against targets in [0, 1]; a scalar, stable for large logits."""
def layer_norm(x: Value, eps: float = 1e-5) -> Expression:
    """(x - mean) / sqrt(variance + eps) of a vector (Ba et al. 2016); multiply and add parameters as you need."""
def kl_div(log_q: Value, p: Value) -> Expression:
    """Divergence sum(p (log p - log_q)) of the distribution p from the one whose logarithm is `log_q`; a scalar."""
def argmax(x: Value) -> Expression:
    """Position of the largest element (the first of equal ones) as a scalar float; it has no gradient."""
