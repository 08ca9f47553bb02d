"use strict";
(() => {
  // The data of every figure stands in the page; colours follow the reader's light or dark setting.
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const variable = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const drawn = [];

  function template() {
    const ink = variable("--ink"), grid = variable("--grid"), raised = variable("--raised");
    const axis = {
      gridcolor: grid, zerolinecolor: grid, linecolor: variable("--muted"), tickcolor: variable("--muted"),
      showline: true, ticks: "outside", ticklen: 4, automargin: true, title: { standoff: 8, font: { size: 13 } },
    };
    return { layout: {
      font: { family: variable("--body"), size: 13, color: ink },
      paper_bgcolor: raised, plot_bgcolor: raised, xaxis: axis, yaxis: axis, dragmode: "zoom",
      hoverlabel: { namelength: -1, bgcolor: raised, bordercolor: grid, font: { color: ink } },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: variable("--muted"), activecolor: variable("--accent") },
      legend: { orientation: "h", x: 0, yanchor: "bottom", bgcolor: "rgba(0,0,0,0)" },
    } };
  }

  const inked = (trace) => trace.meta === "ink"
    ? { ...trace, marker: { ...trace.marker, color: variable("--ink") } }
    : trace;

  function draw(plot) {
    const { spec, large } = plot;
    const height = large ? Math.max(360, innerHeight - 190) : spec.layout.height;
    const layout = { ...structuredClone(spec.layout), template: template(), height };
    const config = {
      responsive: true, displaylogo: false, showTips: false,
      modeBarButtons: [["toImage"], ["zoom2d", "pan2d"], ["zoomIn2d", "zoomOut2d", "resetScale2d"]],  // none that sends data away
      toImageButtonOptions: { filename: plot.name, scale: 2 },
    };
    return Plotly.react(plot.node, structuredClone(spec.data).map(inked), layout, config);
  }

  function start(node) {
    const figure = node.closest("figure");
    const plot = { node, name: figure.id, large: false, spec: JSON.parse(figure.querySelector("script").textContent) };
    drawn.push(plot);
    const failed = (error) => {
      node.innerHTML = "";
      node.append(Object.assign(document.createElement("p"), { className: "broken", textContent: `not drawn: ${error}` }));
      console.error(error);
    };
    try { draw(plot).then(() => { node.dataset.drawn = "true"; }, failed); } catch (error) { failed(error); }
    node.addEventListener("keydown", (event) => zoomByKey(event, node));
    const button = figure.querySelector("button.enlarge");
    button.addEventListener("click", () => enlarge(plot, figure, button));
    figure.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && plot.large) { enlarge(plot, figure, button); button.focus(); }
    });
  }

  function enlarge(plot, figure, button) {
    plot.large = !plot.large;
    figure.classList.toggle("large", plot.large);
    button.textContent = plot.large ? "Close" : "Enlarge";
    button.setAttribute("aria-expanded", String(plot.large));
    document.body.style.overflow = plot.large ? "hidden" : "";
    draw(plot);
  }

  // Keys on a focused figure: + and - zoom, arrows move, 0 shows everything again.
  function zoomByKey(event, node) {
    const moves = { "+": [0.1, -0.1], "=": [0.1, -0.1], "-": [-0.125, 0.125], ArrowLeft: [-0.1, -0.1], ArrowRight: [0.1, 0.1] };
    const axes = Object.keys(node.layout).filter((key) => /^xaxis\d*$/.test(key) && node.layout[key].range);
    const change = {};
    if (event.key === "0") {
      for (const axis of axes) change[`${axis}.autorange`] = true;
      for (const key of Object.keys(node.layout)) if (/^yaxis\d*$/.test(key)) change[`${key}.autorange`] = true;
    } else if (moves[event.key]) {
      for (const axis of axes) {
        const [low, high] = node.layout[axis].range, [left, right] = moves[event.key];
        change[`${axis}.range`] = [low + left * (high - low), high + right * (high - low)];
      }
    } else return;
    event.preventDefault();
    Plotly.relayout(node, change);
  }

  // Tables: a heading sorts by its column, a second time the other way round; empty cells stay below.
  function sortBy(heading) {
    const table = heading.closest("table"), body = table.tBodies[0];
    const column = [...heading.parentNode.children].indexOf(heading);
    const down = heading.getAttribute("aria-sort") === "ascending";
    for (const other of heading.parentNode.children) other.setAttribute("aria-sort", "none");
    heading.setAttribute("aria-sort", down ? "descending" : "ascending");
    const value = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent.trim();
    const words = new Intl.Collator(undefined, { numeric: true });
    const numeric = heading.classList.contains("number");
    const rows = [...body.rows].map((row, index) => ({ row, index, value: value(row) }));
    rows.sort((a, b) => {
      if ((a.value === "") !== (b.value === "")) return a.value === "" ? 1 : -1;
      const order = numeric ? Number(a.value) - Number(b.value) : words.compare(a.value, b.value);
      return (down ? -order : order) || a.index - b.index;
    });
    body.append(...rows.map((entry) => entry.row));
  }

  for (const heading of document.querySelectorAll("table.sortable th"))
    heading.querySelector("button").addEventListener("click", () => sortBy(heading));
  for (const node of document.querySelectorAll("figure .plot")) start(node);
  dark.addEventListener("change", () => drawn.forEach(draw));
  addEventListener("beforeprint", () => document.querySelectorAll("main details").forEach((part) => { part.open = true; }));
})();
