"use strict";
// Line charts with uPlot: one look for all, colours that colour-blind people tell apart, the same x under the pointer.

const charts = new Set();
const DASHES = [[], [7, 4], [2, 3]];

function css(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function seriesColour(place) {
  return css(`--series-${place % 7}`);
}

function faded(colour, share) {
  return colour + Math.round(share * 255).toString(16).padStart(2, "0");
}

// series: [{label, values, colour, dash, width, faint, points}]; bands: [[high, low, colour]] by places in series
function chart({ title, meaning, unit, healthy, height = 170, xLabel, goal, format = brief, fromZero = false, wide }) {
  const value = make("output.value", {}, "");
  const canvas = make("div.canvas", { role: "img", "aria-label": title });
  const figure = make("figure.card" + (wide ? ".wide" : ""), {},
    make("figcaption", {}, make("strong", {}, title), unit ? make("span.unit", {}, unit) : null, value,
      healthy ? make("span.healthy", { title: "outside of it, apexrl doctor looks closer" }, "healthy: " + healthy) : null,
      meaning ? make("span.meaning", { title: meaning }, meaning) : null),
    canvas);
  let plot = null;
  let shape = "";
  let latest = null;
  const self = { figure, canvas, redraw: () => latest && self.set(...latest, true), resize, drop };

  function resize() {
    if (plot && canvas.clientWidth) plot.setSize({ width: canvas.clientWidth, height });
  }

  function drop() {
    if (plot) plot.destroy();
    plot = null;
    charts.delete(self);
  }

  self.set = (x, series, bands = [], label = xLabel, anew = false) => {
    latest = [x, series, bands, label];
    charts.add(self);
    const form = JSON.stringify([series.map((one) => [one.label, one.colour, one.dash, one.faint]), bands, label]);
    const data = [x, ...series.map((one) => one.values)];
    const named = series.filter((one) => one.label && !one.faint);
    value.textContent = said(named, x.length - 1);
    canvas.setAttribute("aria-label", `${title}: ${value.textContent || "no values"}`);
    if (plot && form === shape && !anew) {
      plot.setData(data);
      return self;
    }
    shape = form;
    if (plot) plot.destroy();
    plot = new uPlot(options(series, bands, label, named), data, canvas);
    return self;
  };

  function said(named, place) {
    const found = named.map((one) => {
      let at = place;
      while (at >= 0 && (one.values[at] === null || one.values[at] === undefined)) at--;
      return at < 0 ? null : (named.length > 1 ? one.label + " " : "") + format(one.values[at]);
    });
    return found.filter((one) => one).slice(0, 4).join("  ");
  }

  function options(series, bands, label, named) {
    const axis = { stroke: css("--quiet"), grid: { stroke: css("--grid"), width: 1 }, ticks: { show: false },
      font: "11px system-ui, sans-serif", labelFont: "11px system-ui, sans-serif" };
    return {
      width: canvas.clientWidth || 340, height, pxAlign: 1, legend: { show: false },
      padding: [8, 18, 0, 0],
      scales: { x: { time: false }, y: { range: (u, low, high) => padded(low, high, goal, fromZero) } },
      axes: [
        { ...axis, label, labelSize: 18, size: 26, space: 70, values: (u, ticks) => ticks.map(brief) },
        { ...axis, size: 52, space: 34, values: (u, ticks) => ticks.map(format) },
      ],
      cursor: { sync: { key: "x", scales: ["x", null] }, points: { size: 6 }, drag: { x: true, y: false }, y: false },
      series: [{}, ...series.map((one) => ({
        label: one.label, stroke: one.faint ? faded(one.colour, one.faint === true ? 0.3 : one.faint) : one.colour,
        width: one.width || (one.faint ? 1 : 2), dash: DASHES[one.dash || 0], spanGaps: true,
        points: { show: Boolean(one.points) && one.values.filter((y) => y !== null).length <= 80, size: 5 },
      }))],
      bands: bands.map(([high, low, colour]) => ({ series: [high + 1, low + 1], fill: faded(colour, 0.16) })),
      hooks: {
        setCursor: [(u) => { value.textContent = said(named, u.cursor.idx ?? u.data[0].length - 1); }],
        draw: goal === null || goal === undefined ? [] : [(u) => drawGoal(u, goal)],
      },
    };
  }
  return self;
}

function padded(low, high, goal, fromZero) {
  if (low === null || high === null || !Number.isFinite(low)) return [0, 1];
  if (goal !== null && goal !== undefined) [low, high] = [Math.min(low, goal), Math.max(high, goal)];
  if (fromZero && low >= 0) return [0, high > 0 ? high * 1.08 : 1];
  const room = high > low ? (high - low) * 0.08 : Math.abs(high) * 0.1 || 1;
  return [low - room, high + room];
}

function drawGoal(u, goal) {
  const y = u.valToPos(goal, "y", true);
  const { left, width } = u.bbox;
  u.ctx.save();
  u.ctx.strokeStyle = u.ctx.fillStyle = css("--quiet");
  u.ctx.setLineDash([6, 5]);
  u.ctx.beginPath();
  u.ctx.moveTo(left, y);
  u.ctx.lineTo(left + width, y);
  u.ctx.stroke();
  u.ctx.textAlign = "left";
  u.ctx.textBaseline = "bottom";
  u.ctx.font = `${11 * devicePixelRatio}px system-ui, sans-serif`;
  u.ctx.fillText(`goal ${brief(goal)}`, left + 6, y - 4 * devicePixelRatio);
  u.ctx.restore();
}

function bars({ title, unit, meaning, rows }) {
  const most = Math.max(...rows.map(([, share]) => share), 1e-12);
  return make("figure.card", {},
    make("figcaption", {}, make("strong", {}, title), make("span.unit", {}, unit),
      meaning ? make("span.meaning", { title: meaning }, meaning) : null),
    make("div.bars", {}, rows.map(([label, share]) => make("div.bar", {}, make("span.name", {}, label),
      make("span.track", {}, make("span.fill", { style: { width: `${(100 * share) / most}%` } })),
      make("span.share", {}, share >= 0.001 ? (100 * share).toFixed(1) + " %" : "< 0.1 %")))));
}

function average(values, width) {
  const half = Math.floor(width / 2);
  const sums = [0], counts = [0];
  values.forEach((value, place) => {
    const known = value !== null && value !== undefined;
    sums.push(sums[place] + (known ? value : 0));
    counts.push(counts[place] + (known ? 1 : 0));
  });
  return values.map((value, place) => {
    if (value === null || value === undefined) return null;
    const [from, to] = [Math.max(0, place - half), Math.min(values.length, place + half + 1)];
    return (sums[to] - sums[from]) / (counts[to] - counts[from]);
  });
}

new ResizeObserver(() => charts.forEach((one) => one.resize())).observe(document.documentElement);
function redrawCharts() { charts.forEach((one) => one.redraw()); }
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redrawCharts);

// Axes of all runs: environment steps, learner updates, time of training.
const AXES = { env_steps: "environment steps", updates: "learner updates", wall_seconds: "time of training" };

function axisOf(name, values) {
  if (name !== "wall_seconds") return { x: values, label: AXES[name], scale: 1 };
  const last = values.length ? values[values.length - 1] : 0;
  const [scale, unit] = last >= 10800 ? [3600, "hours"] : last >= 180 ? [60, "minutes"] : [1, "seconds"];
  return { x: values.map((x) => x / scale), label: `${unit} of training`, scale };
}

function axisChoice(chosen, change) {
  return make("label.choice", {}, "x axis ", make("select", { onchange: (event) => change(event.target.value) },
    Object.entries(AXES).map(([name, label]) => make("option", { value: name, selected: name === chosen }, label))));
}
