"""Checks of the simulator against what was measured or published; `scripts/validate.py` runs them.

    published    a published engine: cost table, sweeps without and with speculation
    paper        the DSpark paper: its MTP-1 curves, what it says of DSpark in production
    engine       the small real engine of this package, wall clock
    traces       figures 5 and 6 of the paper on the bundled traces
    sensitivity  which input a capacity answer depends on
    drafters     figures 2 to 4 of the paper in kind, with the bundled drafters

Each has `run(settings) -> dict` of plain numbers (or raises `Absent` where its data is not here), and
`text(numbers)`, its section of docs/validation.md; `document` puts them together. What was measured or
predicted is in docs/validation.json.
"""
