"""Random cases against oracles. `scripts/fuzz` runs them as long as it is given; tests run a fixed part.

One generator of random cells and graphs (`cells.py`, `graphs.py`) serves the tests of planners, targets and maps, and
`scripts/fuzz --minutes M [--seed S]`, which goes round its kinds:

- `graphs`: cells that recur, lists, unread results; policy, passes, dropout. Must agree with the float64
  reference norm-wise, to 1e-5 forward and 1e-4 in gradients; bits are equal for numbers of virtual processors,
  schedules, and in inference; every kind of launch, planned for a machine with any schedule or groups, passes
  the verifier; where PyTorch is installed, so do loss and gradients of its autograd (`autograd.py`). In a quarter of
  the cases products round to bf16, in the reference, too; what is near a tie is not compared with it.
- `maps`: structures in tables and lists, several kinds, missing children. The bits of calls one by one, the reference.
- `histories`: updates, accumulation, freezing, assignments; optimizers, averages, clipping. Training in NumPy; equal
  bits with checkpoints resumed by a new model, other handles and configurations in the middle.
- `files`: damage to texts, graph sets, checkpoints, the file of tuned choices. An error of vpps that names the file, or
  something sound.
- `interruptions`: Ctrl-C at points of a call. It comes through, files are old or new, training goes on as with the
  call or without.
- `magnitudes`: an op of operands from 1e-44 to 1e38, masked, equal, far from 0. Value and gradient beside formulas in
  extended precision that share nothing with the op table.
- `constants`: clamp bounds, slopes and thresholds that change from step to step. The bits of the same ops in a cell,
  and no program beyond those of the first step.
- `scripts` (only by `scripts/fuzz scripts`): verified scripts, broken at random - words, barriers, orders, owners - and
  run on the emulator, in a process of its own. What is unsafe there the verifier must have refused. A script, a seed
  and a number give the same broken script again.

A case is plain data (`graphs.Graph`) with a `program()`: its text is what is executed and what is printed, so a finding
is a program that uses vpps and NumPy alone. `minimise.py` makes the data smaller while the case fails with the same
sort of words; the program is then run in a process of its own, and the output says how that ended. The seed and the
number of a case repeat it: `scripts/fuzz --seed S --case N`. Rounding is no finding: where an error is large, the
reference runs again with every operand off by 1e-7, and what that moves is not compared (`oracle.py`). `--sanitize
--only graphs` compiles planner and recorder for AddressSanitizer and UndefinedBehaviorSanitizer (`sanitized.py`). A run
ends with 1 if anything was found. CI runs a fixed part (`tests/fuzz/test_fuzz.py`,
`tests/planner/test_random_graphs.py`).

To add an operator to what is drawn, write it into `cells.PLAIN` or `cells.LISTS`; a kind is a module with
`draw(random)`, whose cases have `check()` and raise `Found`.
"""
