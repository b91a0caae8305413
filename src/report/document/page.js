"use strict";
const { drawn } = JSON.parse(document.getElementById("data").textContent);

// Light, dark, or as the system has it.
document.getElementById("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const dark = getComputedStyle(root).getPropertyValue("color-scheme") === "dark"
    || (!root.dataset.theme && matchMedia("(prefers-color-scheme: dark)").matches);
  root.dataset.theme = dark ? "light" : "dark";
});

// Rows that contain all words of the search.
for (const tools of document.querySelectorAll(".tools")) {
  const rows = [...tools.nextElementSibling.querySelectorAll("tbody tr")];
  const status = tools.querySelector("[role=status]");
  tools.querySelector("input").addEventListener("input", (event) => {
    const words = event.target.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
      shown += row.hidden ? 0 : 1;
    }
    status.textContent = `${shown} of ${rows.length} rows`;
  });
}

// Distance of the horizontal axis from the bottom of its label, less than the margin: letters reach below the line.
const LABEL_OFFSET = 38;

// Size, margins and style of a plot.
const frame = (figure) => ({
  width: Math.max(figure.clientWidth, 320),
  height: 320,
  marginLeft: 60,
  marginBottom: 44,
  style: { background: "transparent", color: "inherit", fontSize: "12px" },
});

function drawChart(figure, chart) {
  const names = chart.series.map((series) => series.name);
  const drawn = ({ y }) => Math.min(y, chart.y_top ?? Infinity);
  const points = chart.series.flatMap((series) => series.points.map((point) => ({ ...point, series: series.name })));
  const channels = { x: "x", y: drawn, stroke: "series" };
  const unit = chart.y.match(/\((.*)\)$/)?.[1] ?? "";
  const marks = chart.mark === "span"
    ? [Plot.ruleX(points, { x: "x", y1: "y_low", y2: "y", stroke: "series", strokeWidth: 3 })]
    : [Plot.line(points, channels), Plot.dot(points, { ...channels, fill: "series", r: 2 })];
  figure.append(Plot.plot({
    ...frame(figure),
    x: { label: `${chart.x} →`, labelOffset: LABEL_OFFSET },
    y: { label: `↑ ${chart.y}`, grid: true, type: chart.y_log ? "log" : "linear", tickFormat: chart.y_log ? "~g" : undefined },
    color: { legend: names.length > 1, domain: names },
    marks: [...marks, Plot.tip(points, Plot.pointer({ x: "x", y: drawn, title: (d) => `${d.name}\n${d.series}: ${d.y.toPrecision(4)} ${unit}`.trimEnd() }))],
  }));
}

function drawHistograms(figure, tensors) {
  const choice = document.createElement("select");
  choice.setAttribute("aria-label", "Tensor");
  tensors.forEach(({ name }, at) => choice.append(new Option(name, at)));
  const place = document.createElement("div");
  const show = () => {
    const { ends: [low, high], shares, ranges } = tensors[choice.value];
    const width = (high - low || 1) / shares.length;
    const bars = shares.map((share, at) => ({ x1: low + at * width, x2: low + (at + 1) * width, share }));
    const lines = ranges.flatMap(({ name, ends }) => ends.map((end) => ({ name, end, ends })));
    place.replaceChildren(Plot.plot({
      ...frame(figure),
      x: { label: "value →", labelOffset: LABEL_OFFSET },
      y: { label: "↑ share of the values", type: "sqrt", grid: true },
      color: { legend: true, domain: ranges.map((range) => range.name) },
      marks: [
        Plot.rectY(bars, { x1: "x1", x2: "x2", y: "share", fill: "currentColor", fillOpacity: 0.3 }),
        // The range that is used comes first, and is wide: one of the others often lies on it.
        Plot.ruleX(lines, { x: "end", stroke: "name", strokeWidth: (line) => line.name === ranges[0].name ? 6 : 1.5 }),
        Plot.tip(lines, Plot.pointerX({ x: "end", title: (line) => `${line.name}\n${line.ends.map((end) => end.toPrecision(4)).join(" to ")}` })),
      ],
    }));
  };
  choice.addEventListener("change", show);
  figure.append(choice, place);
  show();
}

// A layout takes seconds for thousands of nodes.
const MAX_NODES = 1500;
// SQNR, in dB, above which the color of a node stays the same.
const TOP_DB = 60;
const NOT_MEASURED = "#888";

function drawGraph(figure, { nodes, edges }) {
  if (nodes.length > MAX_NODES) {
    figure.textContent = `${nodes.length} nodes: a graph is drawn for up to ${MAX_NODES}.`;
    return;
  }
  const errors = nodes.map((node) => node.sqnr_db).filter((db) => db !== undefined && Math.abs(db) < 200)
    .map((db) => Math.min(db, TOP_DB));
  // The ends of the scale are too dark for text.
  const scheme = (share) => d3.interpolateRdYlGn(0.1 + 0.7 * share);
  const color = d3.scaleSequential(scheme).domain(d3.extent(errors)).clamp(true);
  const legend = document.createElement("div");
  const keys = (colors) => colors.map(([how, fill]) => `<span class="key" style="background:${fill}"></span>${how}`).join("");
  const showLegend = (by) => {
    if (by === "error") {
      legend.innerHTML = keys([["not measured", NOT_MEASURED]]);
      legend.prepend(Plot.legend({ color: { domain: color.domain(), interpolate: scheme, label: "SQNR (dB)" } }));
    } else {
      legend.innerHTML = keys(["integer", "fused", "float"].map((how) => [how, `var(--${how})`]));
    }
  };
  const key = document.createElement("div");
  key.className = "legend";
  const choice = document.createElement("select");
  choice.setAttribute("aria-label", "Color of nodes");
  choice.append(new Option("color by type", "type"));
  if (errors.length) {
    choice.append(new Option("color by error", "error"));
  }
  key.append(choice, legend);
  showLegend("type");
  const graph = new dagre.graphlib.Graph().setGraph({ nodesep: 12, ranksep: 24 }).setDefaultEdgeLabel(() => ({}));
  nodes.forEach((node, at) => graph.setNode(String(at), { width: 16 + 7 * node.op_type.length, height: 22 }));
  edges.forEach(([from, to]) => graph.setEdge(String(from), String(to)));
  dagre.layout(graph);
  const svg = d3.create("svg");
  const inside = svg.append("g");
  const line = d3.line((point) => point.x, (point) => point.y).curve(d3.curveBasis);
  inside.selectAll("path").data(graph.edges()).join("path").attr("d", (edge) => line(graph.edge(edge).points));
  const boxes = inside.selectAll("g").data(nodes).join("g")
    .attr("transform", (_, at) => `translate(${graph.node(String(at)).x},${graph.node(String(at)).y})`);
  boxes.append("rect").attr("class", (node) => node.computed)
    .attr("x", (_, at) => -graph.node(String(at)).width / 2).attr("y", -11)
    .attr("width", (_, at) => graph.node(String(at)).width).attr("height", 22);
  boxes.append("text").text((node) => node.op_type);
  boxes.append("title").text((node) => `${node.name}\n${node.computed}`
    + (node.sqnr_db === undefined ? "" : `\nSQNR ${node.sqnr_db.toFixed(2)} dB`));
  choice.addEventListener("change", () => {
    const by = choice.value === "error";
    boxes.select("rect").style("fill", (node) => by ? (node.sqnr_db === undefined ? NOT_MEASURED : color(node.sqnr_db)) : null);
    boxes.select("text").style("fill", by ? "#000" : null);
    showLegend(choice.value);
  });
  figure.append(key, svg.node());
  const { width, height } = graph.graph();
  const scale = Math.min(1, Math.max(0.2, figure.clientWidth / (width + 40)));
  const zoom = d3.zoom().scaleExtent([0.05, 4]).on("zoom", ({ transform }) => inside.attr("transform", transform));
  svg.call(zoom).call(zoom.transform, d3.zoomIdentity.translate(20 + Math.max(0, (figure.clientWidth - scale * width) / 2), 20).scale(scale));
  svg.attr("data-height", height);
}

// Charts are drawn when they come into view, and all of them for print.
const pending = new Map();
function draw(figure) {
  const body = pending.get(figure);
  if (body) {
    pending.delete(figure);
    if (body.chart) {
      drawChart(figure, body.chart);
    } else if (body.graph) {
      drawGraph(figure, body.graph);
    } else {
      drawHistograms(figure, body.histograms);
    }
  }
}
const viewer = new IntersectionObserver((entries) => {
  entries.filter((entry) => entry.isIntersecting).forEach((entry) => draw(entry.target));
}, { rootMargin: "200px" });
for (const [id, body] of Object.entries(drawn)) {
  const figure = document.querySelector(`#${id} figure`);
  pending.set(figure, body);
  viewer.observe(figure);
}
addEventListener("beforeprint", () => [...pending.keys()].forEach(draw));
