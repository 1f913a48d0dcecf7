"""Random cases against oracles. `scripts/fuzz` runs them for as long as requested; tests run a fixed part.

One generator of random cells and graphs (`cells.py`, `graphs.py`) serves the tests of planners, targets and maps, and
`scripts/fuzz --minutes M [--seed S]`, which cycles through these kinds of cases:

- `graphs`: recurrent cells, lists, unread results; policy, passes, dropout. Results must agree with the float64
  reference norm-wise, to 1e-5 forward and 1e-4 in gradients. Bits must be equal for all numbers of virtual processors
  and schedules, and in inference. The verifier must accept every kind of launch, planned for a machine with any
  schedule or groups. If PyTorch is installed, loss and gradients must also agree with its autograd (`autograd.py`). In
  a quarter of the cases, products round to bf16, also in the reference; values near a tie are then not compared.
- `maps`: structures in tables and lists, several kinds, missing children. Results must be bit-identical to single
  calls, and agree with the reference.
- `histories`: updates, accumulation, freezing, assignments; optimizers, averages, clipping. Results must agree with
  training in NumPy. Resuming checkpoints in a new model, and changing handles and options, must not change a bit.
- `files`: damage to texts, graph sets, checkpoints, the file of tuned choices. Reading must raise a vpps error that
  names the file, or give a valid result.
- `interruptions`: Ctrl-C at points of a call. It must be passed on; each file must be old or new; training must
continue as with or without the call.
- `magnitudes`: an op on operands from 1e-44 to 1e38, masked, equal, far from 0. Value and gradient must agree with
  formulas in extended precision that share nothing with the op table.
- `constants`: clamp bounds, slopes and thresholds that change from step to step. Bits must equal those of the same ops
  in a cell, and later steps must not create new programs.
- `scripts` (only by `scripts/fuzz scripts`): verified scripts, randomly broken (words, barriers, orders, owners) and
  run on the emulator, in a separate process. The verifier must have refused all unsafe ones. A script, a seed and a
  number reproduce a broken script.

A case is plain data (`graphs.Graph`) with a `program()`, whose text is executed and printed: a finding is a program
that uses only vpps and NumPy. `minimise.py` shrinks the data while the case fails with a similar message. The program
then runs in a separate process, and the output shows how it ends. A case's seed and number reproduce it: `scripts/fuzz
--seed S --case N`. Rounding is not a finding: after a large error, the reference runs again with every operand off by
1e-7, and values that this changes are not compared (`oracle.py`). `--sanitize --only graphs` compiles planner and
recorder for AddressSanitizer and UndefinedBehaviorSanitizer (`sanitized.py`). A run exits with status 1 if anything was
found. CI runs a fixed part (`tests/fuzz/test_fuzz.py`, `tests/planner/test_random_graphs.py`).

To draw a new operator, add it to `cells.PLAIN` or `cells.LISTS`. A kind is a module with `draw(random)`, whose cases
have `check()` and raise `Finding`.
"""
