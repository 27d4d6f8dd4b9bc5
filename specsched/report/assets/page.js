// Draws the charts of a report in the colours of its theme, again when that, the width or the medium changes.
(function () {
  "use strict";

  const data = JSON.parse(document.getElementById("specsched-data").textContent);
  const charts = new Map(); // element -> function that makes its figure
  const root = document.documentElement;
  let printing = false;

  const colour = (name) => getComputedStyle(root).getPropertyValue("--" + name).trim();

  // "@ink", "@faint" and "@paper" stand for the theme's own colours.
  function themed(value) {
    if (typeof value === "string" && value[0] === "@" && colour(value.slice(1))) return colour(value.slice(1));
    if (Array.isArray(value)) return value.map(themed);
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([key, inside]) => [key, themed(inside)]));
    }
    return value;
  }

  function axis(given) {
    return Object.assign(
      {
        gridcolor: colour("grid"), linecolor: colour("faint"), zerolinecolor: colour("line"),
        tickfont: { color: colour("faint") }, automargin: true, separatethousands: true,
      },
      themed(given || {})
    );
  }

  function layoutOf(element, given) {
    const layout = Object.assign(
      {
        paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
        font: { family: "system-ui, sans-serif", size: 13, color: colour("ink") },
        margin: { l: 56, r: 14, t: 12, b: 48 }, hovermode: "closest",
        hoverlabel: { bgcolor: colour("paper"), bordercolor: colour("line"), font: { color: colour("ink") } },
        modebar: { bgcolor: "rgba(0,0,0,0)", color: colour("faint"), activecolor: colour("ink") },
        legend: { orientation: "h", y: -0.28, x: 0, yanchor: "top" },
        height: element.classList.contains("tall") ? 420 : 340,
      },
      themed(given)
    );
    for (const name of Object.keys(given).concat(["xaxis", "yaxis"])) {
      if (/^[xy]axis/.test(name)) layout[name] = axis(given[name]);
    }
    if (printing) layout.width = 640;
    return layout;
  }

  function draw(element) {
    const figure = charts.get(element)();
    const config = {
      responsive: true, displaylogo: false, modeBarButtonsToRemove: ["lasso2d", "select2d", "autoScale2d"],
      edits: figure.edits || {}, displayModeBar: element.clientWidth > 480 && !printing ? "hover" : false,
    };
    return Plotly.react(element, themed(figure.data), layoutOf(element, figure.layout), config);
  }

  function add(element, figure) {
    charts.set(element, figure);
    draw(element);
  }

  function drawAll() {
    for (const element of charts.keys()) draw(element);
  }

  function setTheme(theme) {
    root.dataset.theme = theme;
    drawAll();
  }

  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  root.dataset.theme = dark.matches ? "dark" : "light";
  dark.addEventListener("change", (event) => setTheme(event.matches ? "dark" : "light"));
  const button = document.getElementById("theme");
  button.hidden = false;
  button.addEventListener("click", () => setTheme(root.dataset.theme === "dark" ? "light" : "dark"));

  let before = "light";
  window.addEventListener("beforeprint", () => {
    before = root.dataset.theme;
    printing = true;
    setTheme("light");
  });
  window.addEventListener("afterprint", () => {
    printing = false;
    setTheme(before);
  });

  for (const element of document.querySelectorAll("[data-chart]")) {
    const figure = data.charts[element.dataset.chart];
    if (figure) add(element, () => figure);
  }
  window.specsched = { data, add, draw };
})();
