// How many users fit at an SLA, read from the loads that were run.
//
// The rule is `Search.first_failure` of specsched/planner/capacity.py: up the rungs to the first load that
// fails, then between it and the last that passed, to one user. Where a load on that way was not run, the
// answer lies between bounds.
(function (root) {
  "use strict";

  const ROUNDING = 1e-9; // as in specsched/simulator/result.py

  // {low, high}: the capacity, exact where they are equal; high null: more than was run.
  function capacityAt(policy, ladder, sla) {
    const rows = new Map(policy.curve.map((row) => [row.concurrency, row]));
    const refused = new Set(policy.refused_loads);
    const known = (load) => rows.has(load) || refused.has(load);
    const held = (row) => row.memory_held && row.limits_kept;
    const passes = (load) => {
      const row = rows.get(load);
      return Boolean(row) && held(row) && row.priced && row.keeps_tps >= sla * (1 - ROUNDING);
    };
    const spare = (load) => {
      const row = rows.get(load);
      return Boolean(row) && held(row) && row.keeps_tps >= ladder.to_spare * sla;
    };
    // The first rung after `load` that is known to fail: the capacity lies below it, whatever was not run.
    const below = (load) => {
      const failed = ladder.rungs.find((rung) => rung > load && known(rung) && !passes(rung));
      return failed === undefined ? null : failed - 1;
    };

    let good = 0;
    let before = 0;
    for (const rung of ladder.rungs) {
      const inside = ladder.refined ? policy.captured_loads.filter((load) => before < load && load < rung) : [];
      // Whether the loads inside are left out hangs on the rung where the one before has speed to spare.
      const open = inside.length > 0 && before > 0 && spare(before);
      if (open && !known(rung)) return { low: good, high: below(good) };
      const skipped = open && spare(rung);
      for (const load of skipped ? [rung] : [...inside, rung]) {
        if (!known(load)) return { low: good, high: below(good) };
        if (passes(load)) {
          good = load;
          continue;
        }
        return ladder.refined ? refine(good, load) : { low: good, high: good };
      }
      before = rung;
    }
    return { low: good, high: good };

    function refine(low, bad) {
      while (bad - low > 1) {
        const middle = Math.floor((low + bad) / 2);
        if (!known(middle)) return { low: low, high: bad - 1 };
        if (passes(middle)) low = middle;
        else bad = middle;
      }
      return { low: low, high: low };
    }
  }

  if (typeof module !== "undefined" && module.exports) module.exports = { capacityAt };
  else root.specschedCapacityAt = capacityAt;
})(typeof globalThis !== "undefined" ? globalThis : this);
