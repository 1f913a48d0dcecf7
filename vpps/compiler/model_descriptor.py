"""Makes a model's record for the compiled planner: static data for parameters, signals and the end of a launch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vpps.compiler.cell_descriptor import NOTHING, Names, template_record
from vpps.compiler.records import Frame, InstructionRecord, LoadRecord, ModelRecord, ParameterRecord, TemplateRecord
from vpps.model.model import Lookup, Parameter
from vpps.ops import size
from vpps.placement.distribution import LEFT_OUT
from vpps.placement.update import Ending, step_fields
from vpps.script.encode import AnyWord, Template, Word, barrier, direct, encode, indexed, signal, wait
from vpps.script.instructions import BY_NAME, HEAD_WORDS, INDEXED, MAGIC, NO_FLAGS, OFFSET_MASK, Flag, instruction_of
from vpps.script.slices import GRADIENT_ROWS, MOST_SEGMENTS, SEGMENT, SHARED_TILES, TILE_COLUMNS, sliced_by_rows, tiles

_WIDTH = 3  # word of an instruction's head


class ModelDescriptor:
    """Makes the record of the parameters and the launch's end.

    Args:
        exclusive: True if every virtual processor has its own script.
    """

    def __init__(self, ending: Ending, exclusive: bool, names: Names) -> None:
        self._ending = ending
        self._distribution = distribution = ending.distribution
        self._names = names
        left_out = Word(LEFT_OUT, Frame.SLOT)
        position = HEAD_WORDS + [f.name for f in BY_NAME["clip"].fields].index("max_norm")
        clip = self._instruction(
            "clip",
            Word(0, Frame.ROWS),
            1,
            relocations={position: Frame.NORM},
            partials=Word(0, Frame.PARTIALS),
            max_norm=0.0,
            left_out=left_out,
        )
        loads = []
        for number, (p, place) in enumerate(distribution.physical.items()):
            if place.on_chip is None:
                continue
            for dealt, weights, shape in (
                (place.on_chip.rows, place.weights, p.shape),
                (place.on_chip.transposed, place.transposed, p.shape[::-1]),
            ):
                if dealt is not None:
                    fields = {"weights": weights, "columns": shape[1], "matrix": dealt.number}
                    words = encode("load", 1, shape[0], dealt.word, dealt.flags, **fields)
                    loads.append(LoadRecord(number, dealt.number, _alone(words)))
        physical, stack_of = list(distribution.physical), distribution.stacks.of
        alone = Flag.ALONE if exclusive else Flag.ROWS
        constants: dict[str, Any] = {"dst": direct(Word(0, Frame.GRADIENT), 0), "data": Word(0, Frame.NUMBERS)}
        header = [MAGIC, distribution.all_vps, distribution.groups, 0] + [0] * distribution.all_vps
        counters = distribution.groups + (distribution.groups > 1)  # the last is for barriers across groups
        self.record = ModelRecord(
            n_vps=distribution.n_vps,
            groups=distribution.groups,
            end=distribution.end,
            load_name=names.bit("load"),
            exclusive=exclusive,
            accumulate=int(Flag.ACCUMULATE) << 16,
            no_gradient=int(Flag.NO_GRADIENT) << 16,
            head_words=HEAD_WORDS,
            tile_rows=GRADIENT_ROWS,
            tile_columns=TILE_COLUMNS,
            segment=SEGMENT,
            most_segments=MOST_SEGMENTS,
            shared_tiles=SHARED_TILES,
            indexed=INDEXED,
            offset_mask=OFFSET_MASK,
            header=header,
            barrier=[barrier(counter).tolist() for counter in range(counters)],
            signal=[signal(counter).tolist() for counter in range(counters)],
            wait=[wait(counter).tolist() for counter in range(counters)],
            stop=[w.constant if isinstance(w, Word) else w for w in encode("end", 0, 0)],
            loss=self._instruction("loss", 1, 1, source=Word(0, Frame.SOURCE), slot=Word(0, Frame.SLOT)),
            constants=self._instruction("input", 1, 0, alone, relocations={_WIDTH: Frame.ROWS}, **constants),
            clip=clip,
            guard=self._instruction("guard", 1, 1, loss=Word(0, Frame.SOURCE), left_out=left_out),
            loads=loads,
            parameters=[self._parameter(p) for p in distribution.physical],
            kernel_of=[physical.index(stack_of.get(p, p)) for p in distribution.places],
        )

    def _instruction(
        self,
        name: str,
        n: AnyWord,
        width: int,
        flags: Flag = NO_FLAGS,
        /,
        *,
        parts: int = 1,
        relocations: dict[int, int] | None = None,
        **fields: Any,
    ) -> InstructionRecord:
        """Make the record of an instruction whose relocations refer to `Frame`; `relocations` adds more by position."""
        if self._distribution.groups > 1 and name not in ("loss", "input"):  # those come before the end of a launch
            flags |= Flag.ALL
        words = encode(name, n, width, parts, flags, **fields)
        for position, relocation in (relocations or {}).items():
            words[position] = Word(0, relocation)
        return InstructionRecord(self._names.bit(instruction_of(name, fields).name), _alone(words))

    def _parameter(self, p: Parameter) -> ParameterRecord:
        rule = self._ending.rule
        place, width = self._distribution.physical[p], size(p.shape[1:])
        is_table, packed = isinstance(p, Lookup), self._distribution.is_packed(p)
        square = step = summed = held = NOTHING
        squares = tiles(p.shape[0], p.shape[1], 1) if packed else 1
        partials = Word(0, Frame.PARTIALS)
        gradient: AnyWord = place.gradient
        if is_table:
            by_rows = sliced_by_rows(width, 1, self._distribution.panel, self._distribution.all_vps)
            flags = Flag.ROWS if by_rows else NO_FLAGS
            lists: dict[str, Any] = {"offsets": Word(0, Frame.OFFSETS), "shift": 0}
            rows, gradient = Word(0, Frame.ROWS), Word(0, Frame.GRADIENT)
            summed = self._instruction("gather_sum", rows, width, flags, dst=direct(gradient, width), **lists)
            held = self._instruction("gather_sum", rows, width, flags, dst=indexed(Word(0, Frame.NUMBERS), 0), **lists)
            square = self._instruction("squares_rows", rows, width, Flag.ROWS, gradient=gradient, partials=partials)
        elif packed:
            square = self._on_matrix("squares_matrix", p, gradient=gradient, partials=partials)
        else:
            fields: dict[str, Any] = {"gradient": gradient, "partials": partials}
            square = self._instruction("squares_rows", 1, size(p.shape), Flag.ROWS, **fields)
        if rule is not None and p.trainable:
            fields = {**step_fields(place, self._ending.averaging), "hyper": Word(0, Frame.HYPER), "gradient": gradient}
            transposed = fields.pop("transposed")
            if is_table:
                fields |= {"table_rows": Word(0, Frame.NUMBERS), "idle": Word(0, Frame.IDLE)}
                step = self._instruction(f"update_rows.{rule}", Word(0, Frame.ROWS), width, Flag.ROWS, **fields)
            elif packed:
                step = self._on_matrix(f"update_matrix.{rule}", p, transposed=transposed, **fields)
            else:
                step = self._instruction(f"update_vector.{rule}", 1, size(p.shape), **fields)
        return ParameterRecord(
            trainable=p.trainable,
            is_table=is_table,
            gradient=place.gradient,
            width=width,
            squares=squares,
            square=square,
            step=step,
            sum=summed,
            sum_held=held,
        )

    def _on_matrix(self, name: str, p: Parameter, **fields: Any) -> InstructionRecord:
        place = self._distribution.physical[p]
        flags = place.rounds & Flag.PAIRS if name.startswith("update_matrix") else NO_FLAGS
        return self._instruction(name, 0, p.shape[0], flags, columns=p.shape[1], **fields)


def _alone(words: Sequence[AnyWord]) -> TemplateRecord:
    """Make the template record of an instruction that belongs to no cell."""
    template = Template(words, [0] * len(words))
    return template_record(template, template.base)
