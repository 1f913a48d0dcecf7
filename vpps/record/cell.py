"""Cells: the user's vertex functions, with a traced program for each signature."""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable, Iterable, Mapping
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from vpps.errors import TraceError
from vpps.ops import Shape
from vpps.ops.operand import Expression, IntArray, ListExpression, Operand, Recent, common_owner, in_progress, running
from vpps.record.trace import ArgKind, CellTrace, Int, List, TracedCell, Vector, shared, trace
from vpps.text import dir_without
from vpps.values import as_mapping, as_shape, exact_key

if TYPE_CHECKING:
    from vpps.record.rows import Rows

R = TypeVar("R")

LISTS = (list, tuple, ListExpression)
"""Accepted types of a list argument if a cell is called inside a cell."""


class Cell(Generic[R]):
    """A vertex function: `@vpps.cell` on a function or method. Calling it on expressions of a graph records one vertex.

    Positional arguments differ between vertices: expressions, ints (words, labels), lists of expressions. Keyword-only
    arguments are static: each combination of their values is traced separately, but planned only once if only constants
    differ, such as a dropout rate. The function runs once per signature, on symbolic arguments: it must not branch on
    values or depend on state that changes later. A cell called inside another cell is inlined.

    Args:
        elements: shapes of the elements of list arguments, by argument name; these arguments then accept only lists.
            Needed only if a cell's first call passes an empty list and no use of the list shows the shape.
    """

    def __init__(
        self, function: Callable[..., R], instance: Any = None, elements: Mapping[str, Shape] | None = None
    ) -> None:
        if not callable(function):
            raise TraceError(f"vpps.cell({function!r}): expected a function")
        self._function = function
        declared = as_mapping({} if elements is None else elements, "elements", TraceError)
        self.elements: dict[str, Shape] = {}
        for name, given in declared.items():
            shape = as_shape(given)
            if shape is None or len(shape) > 2:
                raise TraceError(f"elements={{{name!r}: {given!r}}}: expected a shape, such as (64,)")
            self.elements[name] = shape
        self.bound = function if instance is None else functools.partial(function, instance)
        self.maps: dict[Any, Any] = {}  # `graph.map`'s programs, by weak references to their cells
        self._instance = (lambda: None) if instance is None else _reference_to(instance)
        self._programs = Recent()
        self.name = getattr(function, "__name__", "cell")
        if instance is not None:  # the names distinguish modules of the same class
            own = getattr(instance, "name", None)
            own = own if isinstance(own, str) else type(instance).__name__
            self.name = own if self.name == "__call__" else f"{own}.{self.name}"
        self.description = f"cell {self.name!r}"
        self._key = f"_cell_{self.name}_{id(self):x}"  # attribute name under which an instance stores its bound cell
        # Copy no attributes: a function made by `functools.wraps` has the wrapped function's, possibly a whole cell.
        functools.update_wrapper(self, function, updated=())
        self.__signature__ = inspect.signature(self.bound)  # for an object's method, without `self`
        for p in inspect.signature(function).parameters.values():
            if p.kind is p.VAR_KEYWORD:
                raise TraceError(f"cell {self.name!r}: **kwargs are not supported; name the static arguments")
        unknown = set(self.elements) - set(inspect.signature(function).parameters)
        if unknown:
            raise TraceError(
                f"cell {self.name!r}: elements= names {', '.join(sorted(unknown))}, which is no argument of the cell"
            )

    def __repr__(self) -> str:
        return f"<cell {self.name!r}>"

    def __get__(self, instance: Any, owner: type | None = None) -> Cell[R]:
        """Bind a method's cell to an instance: each instance has separate programs, with its own parameters."""
        if instance is None:
            return self
        # Bound cells are stored in the instance, so they live as long as it does. The key identifies the unbound cell:
        # an overriding cell has a different one. A copied instance carries the original's bound cell; this is checked.
        try:
            own: dict[Any, Any] = instance.__dict__
        except AttributeError:
            raise TraceError(
                f"cell {self.name!r}: instances of {type(instance).__name__} have __slots__ and no __dict__ to keep "
                "the bound cell in; add '__dict__' to the slots"
            ) from None
        key = self._key
        bound = own.get(key)
        if bound is None or bound._instance() is not instance or not bound.is_of(self._function):
            new = Cell(self._function, instance, self.elements)
            own[key] = bound = new if bound is not None else own.setdefault(key, new)  # threads may race
        return bound

    __dir__ = dir_without("bound check_lists description is_of maps origin program traced")

    @overload
    def __call__(self: Cell[Expression], row: Rows | IntArray, /, *rest: Any, **statics: Any) -> Rows: ...
    @overload
    def __call__(self, *args: Any, **statics: Any) -> R: ...
    def __call__(self, *args: Any, **statics: Any) -> Any:
        """Record a vertex on a graph's expressions, or one vertex per row of `Rows`, and return the function's results.

        If no argument is an expression, use `graph.call(cell, ...)` to specify the graph.

        Raises:
            GraphError: the expressions belong to two graphs.
            TraceError, ShapeError, DtypeError, IndexRangeError: the function does not fit the arguments.
        """
        if not statics:
            try:
                owner = args[0].owner
                record = owner.recorders[self]
            except (IndexError, AttributeError, KeyError):
                pass  # the first argument is not an expression, or no such call was recorded before
            else:
                if not in_progress or running.current in (None, owner):
                    result: Any = record(owner, args)
                    if result is not None:
                        return result
        owner = common_owner([*args, *statics.values()], self.description)
        if isinstance(owner, CellTrace):
            if self.elements:
                self.check_lists(isinstance(x, LISTS) for x in args)
            return self.bound(*args, **statics)
        return owner.call_cell(self, args, statics)  # type: ignore[attr-defined]

    @functools.cached_property
    def signature(self) -> inspect.Signature:
        """The function's signature, without `self`."""
        return inspect.signature(self.bound)

    @property
    def origin(self) -> Any:
        """The function's code, which is equal if the function is defined again; for other callables, their type."""
        function: Any = self._function
        while isinstance(function, functools.partial):
            function = function.func
        return getattr(function, "__code__", type(function))

    def is_of(self, function: Any) -> bool:
        """Return True if this is exactly that function's cell."""
        return self._function is function

    def check_lists(self, are_lists: Iterable[bool]) -> None:
        """Raise TraceError if an argument in `elements` is not a list: reductions would reduce a vector's elements.

        Args:
            are_lists: for each positional argument, True if it is a list.
        """
        for p, is_list in zip(self.signature.parameters.values(), are_lists, strict=False):
            if p.kind is p.VAR_POSITIONAL:
                break
            if p.name in self.elements and not is_list:
                raise TraceError(
                    f"cell {self.name!r}: elements= declares {p.name} a list, but it is given one value; pass a list, "
                    f"such as [{p.name}], or leave {p.name} out of elements="
                )

    def traced(self, signature: tuple[Any, ...]) -> TracedCell | None:
        """Return the program for a signature without static arguments, or None if it was not traced before."""
        return self._programs.get(signature)

    def program(self, signature: tuple[Any, ...], statics: dict[str, Any]) -> TracedCell:
        """Return the program for one signature, from the cache or newly traced.

        Args:
            signature: for each positional argument, its shape, `int`, or `(list, element shape or None)`.
        """
        try:
            key = (signature, tuple((k, exact_key(v)) for k, v in sorted(statics.items()))) if statics else signature
            program: TracedCell | None = self._programs.get(key)
        except TypeError:
            raise TraceError(
                f"cell {self.name!r}: keyword arguments are static and must be hashable (numbers, strings, tuples); "
                "pass expressions and lists by position"
            ) from None
        return program or self._new_program(key, signature, statics)

    def _new_program(self, key: Any, signature: tuple[Any, ...], statics: dict[str, Any]) -> TracedCell:
        for name, value in statics.items():
            if isinstance(value, Operand):
                raise TraceError(
                    f"cell {self.name!r}: {name}={value!r}: keyword arguments are static; pass it by position"
                )
        try:
            bound = self.signature.bind(*signature, **statics)
        except TypeError as error:
            parts = any(s is not int and s[:1] == (list,) for s in signature) and "missing" in str(error)
            hint = (
                f"; a tuple is a list argument, and a state's parts go singly: {self.name}(x, *state)" if parts else ""
            )
            raise TraceError(f"cell {self.name!r}: {error}{hint}") from None
        names = [name for name in bound.arguments if name not in statics]
        self.check_lists(s is not int and s[:1] == (list,) for s in signature)
        signature = tuple(
            (list, self.elements.get(name)) if s == (list, None) else s
            for name, s in zip_longest(names[: len(signature)], signature)
        )
        try:
            program = trace(self.name, self.bound, tuple(map(kind_of, signature)), statics)
        except TraceError:
            # An empty list does not show its element shape: use any program that otherwise fits.
            fits = [p for p in self._programs.values() if _fits(p.kinds, signature)] if not statics else []
            if not fits:
                raise
            program = fits[0]
        else:
            program.argument_names = tuple(names[: len(signature)])
            program = shared(program, self.origin)
        resolved = tuple(map(signature_of, program.kinds))
        full_key = (resolved, key[1]) if statics else resolved
        kept: TracedCell = self._programs.keep(full_key, program)  # empty and non-empty lists share a program
        self._programs[key] = kept
        return kept


def _reference_to(instance: Any) -> Callable[[], Any]:
    """Return a function that returns the instance, through a weak reference if the class allows it."""
    try:
        return weakref.ref(instance)
    except TypeError:
        return lambda: instance


def kind_of(signature: Any) -> ArgKind:
    """Return the kind of an argument described by `int`, a shape, or `(list, element shape or None)`."""
    if signature is int:
        return Int()
    return List(signature[1]) if signature[:1] == (list,) else Vector(signature)


def signature_of(kind: ArgKind) -> Any:
    """Return the signature entry of an argument kind; the inverse of `kind_of`."""
    if isinstance(kind, Int):
        return int
    return (list, kind.shape) if isinstance(kind, List) else kind.shape


def _fits(kinds: tuple[ArgKind, ...], signature: tuple[Any, ...]) -> bool:
    """Return True if a call fits a program with these kinds, given that empty lists' element shapes are unknown."""
    mine = tuple(map(signature_of, kinds))
    return len(mine) == len(signature) and all(
        m == s or (s == (list, None) and isinstance(m, tuple) and m[:1] == (list,))
        for m, s in zip(mine, signature, strict=True)
    )


@overload
def cell(function: Callable[..., R]) -> Cell[R]: ...
@overload
def cell(*, elements: Mapping[str, Shape]) -> Callable[[Callable[..., R]], Cell[R]]: ...
def cell(
    function: Callable[..., R] | None = None, *, elements: Mapping[str, Shape] | None = None
) -> Cell[R] | Callable[[Callable[..., R]], Cell[R]]:
    """Make a vertex function from a Python function; see `Cell`.

    Used as `@vpps.cell`, or as `@vpps.cell(elements={"hs": (64,)})` to declare the shape of a list's elements.
    """
    if function is None:
        return lambda f: Cell(f, elements=elements)
    return Cell(function, elements=elements)
