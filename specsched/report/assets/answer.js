// The explorer of an answer: an SLA to move, policies to toggle, curves of speed and of load.
(function () {
  "use strict";

  const { data, add, draw } = window.specsched;
  const answer = data.answer;
  if (!answer) return;
  const element = (id) => document.getElementById(id);
  const slider = element("sla"), box = element("sla-number"), shown = element("reading");
  const speedPlot = element("plot-speed"), loadPlot = element("plot-load");
  const measure = element("measure"), logarithmic = element("log-users");
  const state = { sla: answer.sla_tps, hidden: new Set() };
  const whole = (value) => Math.round(value).toLocaleString("en-US");
  const few = (value) => value.toLocaleString("en-US", { maximumFractionDigits: 1 });

  const rows = (policy) => policy.curve;
  const speedOf = (row) => row.tps_user[answer.speed_key];
  const off = answer.policies.find((policy) => policy.policy === "off");

  function offAt(users) {
    const curve = rows(off);
    let i = curve.findIndex((row) => row.concurrency >= users);
    if (i < 0) return NaN;
    if (i === 0) return curve[0].throughput;
    const a = curve[i - 1], b = curve[i];
    const share = (users - a.concurrency) / (b.concurrency - a.concurrency);
    return a.throughput + share * (b.throughput - a.throughput);
  }

  const MEASURES = {
    throughput: ["output tokens/s of one engine", (row) => row.throughput],
    speed: ["speed of a user, tokens/s (" + answer.speed_key + ")", speedOf],
    share: ["% of requests at " + few(answer.sla_tps) + " tokens/s" + answer.limits, (row) => 100 * row.share_at_sla],
    gain: ["throughput / that of off", (row) => row.throughput / offAt(row.concurrency)],
    verified: ["tokens per request and step (anchor included)", (row) => row.verify_tokens_per_request],
    step: ["ms per step", (row) => 1000 * row.step_seconds],
  };

  function line(policy, x, y) {
    const lead = policy.policy === answer.recommended;
    return {
      type: "scatter", mode: "lines+markers", name: policy.label, x: x, y: y, showlegend: false,
      visible: !state.hidden.has(policy.policy),
      line: { color: policy.colour, width: lead ? 3.4 : 1.8, dash: policy.lossless ? "solid" : "dash" },
      marker: { color: policy.colour, size: lead ? 6 : 4.5, symbol: policy.symbol },
      opacity: policy.opacity,
      customdata: rows(policy).map((row) => [row.concurrency, few(speedOf(row)), whole(row.throughput),
        row.emitted_per_step.toFixed(2), row.verify_tokens_per_request.toFixed(2)]),
      hovertemplate: "<b>" + policy.label + "</b><br>%{customdata[0]} users<br>%{customdata[1]} tokens/s per user" +
        "<br>%{customdata[2]} tokens/s in all<br>%{customdata[3]} emitted, %{customdata[4]} verified a step<extra></extra>",
    };
  }

  // A ring where the policy's capacity is at this SLA; its bars say what the noise of the trace leaves.
  function ring(policy, x, y, bars) {
    const found = window.specschedCapacityAt(policy, answer.ladder, state.sla);
    const at = rows(policy).filter((row) => row.concurrency <= found.low).pop();
    if (!found.low || !at) return null;
    const trace = {
      type: "scatter", mode: "markers", x: [x(at)], y: [y(at)], showlegend: false, hoverinfo: "skip",
      visible: !state.hidden.has(policy.policy),
      marker: { size: 13, symbol: "circle-open", color: policy.colour, line: { width: 2.4, color: policy.colour } },
    };
    const asked = state.sla === answer.sla_tps && found.low === policy.capacity;
    if (bars && asked && policy.interval) {
      trace.error_x = { type: "data", symmetric: false, color: policy.colour, thickness: 2.4, width: 6,
        array: [policy.interval[1] - found.low], arrayminus: [found.low - policy.interval[0]] };
    }
    return trace;
  }

  function speedFigure() {
    const lines = answer.policies.map((p) => line(p, rows(p).map(speedOf), rows(p).map((row) => row.throughput)));
    const rings = answer.policies.map((p) => ring(p, speedOf, (row) => row.throughput, false)).filter(Boolean);
    return {
      data: lines.concat(rings),
      edits: { shapePosition: true },
      layout: {
        xaxis: { title: { text: "speed of a user, tokens/s (" + answer.speed_key + ")" }, rangemode: "tozero" },
        yaxis: { title: { text: "output tokens/s of one engine" }, rangemode: "tozero" },
        shapes: [{ type: "line", xref: "x", yref: "paper", x0: state.sla, x1: state.sla, y0: 0, y1: 1,
          line: { color: "@ink", width: 2, dash: "dash" } }],
        annotations: [{ x: state.sla, y: 1, yref: "paper", yanchor: "top", xanchor: "left", showarrow: false,
          text: " SLA " + few(state.sla), font: { color: "@ink" }, bgcolor: "@paper" }],
      },
    };
  }

  function loadFigure() {
    const [title, of] = MEASURES[measure.value];
    const users = (row) => row.concurrency;
    const lines = answer.policies.map((p) => line(p, rows(p).map(users), rows(p).map(of)));
    const rings = answer.policies.map((p) => ring(p, users, of, true)).filter(Boolean);
    return {
      data: lines.concat(rings),
      layout: {
        xaxis: { title: { text: "concurrent users of one engine" }, type: logarithmic.checked ? "log" : "linear",
          dtick: logarithmic.checked ? Math.log10(2) : undefined, tickformat: ",d" },
        yaxis: { title: { text: title }, rangemode: "tozero" },
      },
    };
  }

  function said(found) {
    if (found.high === null) return "over " + whole(found.low);
    return found.low === found.high ? whole(found.low) : whole(found.low) + "\u2013" + whole(found.high);
  }

  function update() {
    let best = null;
    for (const policy of answer.policies) {
      const found = window.specschedCapacityAt(policy, answer.ladder, state.sla);
      const label = element("policy-" + policy.id);
      label.querySelector(".users").textContent = said(found);
      label.classList.remove("lead");
      const asked = state.sla === answer.sla_tps && policy.policy === answer.recommended;
      if (policy.lossless && found.low > 0 && (asked || !best || found.low > best.found.low)) {
        if (!best || !best.asked) best = { policy, found, label, asked };
      }
    }
    if (best) best.label.classList.add("lead");
    const exact = !best || best.found.low === best.found.high;
    shown.textContent = best
      ? "At " + few(state.sla) + " tokens/s" + answer.limits + ": " + best.policy.policy + " carries " + said(best.found) + " users" +
        (exact ? "." : " (between loads that were run; the marks of the slider are exact).")
      : "At " + few(state.sla) + " tokens/s" + answer.limits + " no lossless policy carries a user.";
    slider.value = state.sla;
    slider.setAttribute("aria-valuetext", few(state.sla) + " tokens per second");
    if (document.activeElement !== box) box.value = state.sla;
    draw(speedPlot);
    draw(loadPlot);
  }

  function move(value) {
    const sla = Number(value);
    if (!Number.isFinite(sla) || sla <= 0 || sla === state.sla) return;
    state.sla = sla;
    update();
  }

  slider.addEventListener("input", () => move(slider.value));
  box.addEventListener("input", () => move(box.value));
  element("sla-reset").addEventListener("click", () => move(answer.sla_tps));
  measure.addEventListener("change", () => draw(loadPlot));
  logarithmic.addEventListener("change", () => draw(loadPlot));
  for (const policy of answer.policies) {
    element("policy-" + policy.id).querySelector("input").addEventListener("change", (event) => {
      if (event.target.checked) state.hidden.delete(policy.policy);
      else state.hidden.add(policy.policy);
      draw(speedPlot);
      draw(loadPlot);
    });
  }
  add(speedPlot, speedFigure);
  add(loadPlot, loadFigure);
  // Dragging the line of the chart is another way to move the SLA; whole tokens/s are near enough.
  speedPlot.on("plotly_relayout", (event) => {
    if ("shapes[0].x0" in event) move(Math.max(1, Math.round(event["shapes[0].x0"])));
  });
  update();
})();
