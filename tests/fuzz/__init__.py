"""Random cases against oracles. `scripts/fuzz` runs them for as long as requested; tests run a fixed part.

One generator of random cells and graphs (`cells.py`, `graphs.py`) serves the tests of planners, targets and maps, and
`scripts/fuzz --minutes M [--seed S]`, which cycles through its kinds:

- `graphs`: recurrent cells, lists, unread results; policy, passes, dropout. Must agree with the float64 reference
  norm-wise, to 1e-5 forward and 1e-4 in gradients. Bits are equal for numbers of virtual processors, schedules, and in
  inference. Every kind of launch, planned for a machine with any schedule or groups, passes the verifier. If PyTorch is
  installed, loss and gradients of its autograd agree, too (`autograd.py`). In a quarter of the cases products round to
  bf16, also in the reference; values near a tie are not compared with it.
- `maps`: structures in tables and lists, several kinds, missing children. Must have the bits of single calls, and
  agree with the reference.
- `histories`: updates, accumulation, freezing, assignments; optimizers, averages, clipping. Must agree with training in
  NumPy. Resuming checkpoints in a new model, and changing handles and configurations, must not change a bit.
- `files`: damage to texts, graph sets, checkpoints, the file of tuned choices. Must raise an error of vpps that names
  the file, or give a valid result.
- `interruptions`: Ctrl-C at points of a call. Must be passed on; files are old or new; training continues as with the
  call or without.
- `magnitudes`: an op on operands from 1e-44 to 1e38, masked, equal, far from 0. Value and gradient must agree with
  formulas in extended precision that share nothing with the op table.
- `constants`: clamp bounds, slopes and thresholds that change from step to step. Bits must equal those of the same ops
  in a cell, and later steps must make no new program.
- `scripts` (only by `scripts/fuzz scripts`): verified scripts, randomly broken (words, barriers, orders, owners) and
  run on the emulator, in a process of its own. The verifier must have refused all unsafe ones. A script, a seed and a
  number reproduce a broken script.

A case is plain data (`graphs.Graph`) with a `program()`, whose text is executed and printed: a finding is a program
that uses only vpps and NumPy. `minimise.py` shrinks the data while the case fails with a similar message. The program
then runs in a process of its own, and the output shows its end. The seed and the number of a case repeat it:
`scripts/fuzz --seed S --case N`. Rounding is no finding: after a large error the reference runs again with every
operand off by 1e-7, and values that this moves are not compared (`oracle.py`). `--sanitize --only graphs` compiles
planner and recorder for AddressSanitizer and UndefinedBehaviorSanitizer (`sanitized.py`). A run ends with 1 if anything
was found. CI runs a fixed part (`tests/fuzz/test_fuzz.py`, `tests/planner/test_random_graphs.py`).

To draw a new operator, add it to `cells.PLAIN` or `cells.LISTS`. A kind is a module with `draw(random)`, whose cases
have `check()` and raise `Finding`.
"""
