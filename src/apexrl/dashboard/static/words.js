"use strict";
// Numbers and times as short text, and the making of elements.

function brief(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  if (value < 0) return "−" + brief(-value);
  const size = value;
  for (const [limit, unit] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e4, "k"]])
    if (size >= limit) return significant(value / (unit === "k" ? 1e3 : limit)) + unit;
  return significant(value);
}

function significant(value) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 100) return value.toFixed(Number.isInteger(value) || size >= 1000 ? 0 : 1);
  if (size >= 0.001) return String(Number(value.toPrecision(3)));
  return value.toExponential(1).replace("e-", "e−");
}

function bytes(value) {
  if (value === null || value === undefined) return "–";
  for (const [limit, unit] of [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]])
    if (value >= limit) return significant(value / limit) + " " + unit;
  return value + " B";
}

function clock(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const whole = Math.max(0, Math.round(seconds));
  const [h, m, s] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
  const two = (n) => String(n).padStart(2, "0");
  return h ? `${h}:${two(m)}:${two(s)}` : `${two(m)}:${two(s)}`;
}

function ago(at, now = Date.now() / 1000) {
  if (!at) return "never";
  const seconds = Math.max(0, now - at);
  if (seconds < 90) return `${Math.round(seconds)} s ago`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min ago`;
  if (seconds < 129600) return `${Math.round(seconds / 3600)} h ago`;
  return `${Math.round(seconds / 86400)} days ago`;
}

// make("a.button", {href: "#/"}, "text", element …): text is never read as HTML.
function make(what, attributes = {}, ...inner) {
  const [name, ...classes] = what.split(".");
  const element = document.createElement(name || "div");
  if (classes.length) element.className = classes.join(" ");
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key === "style") for (const [name, one] of Object.entries(value)) element.style.setProperty(name, one);
    else element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...inner.flat().filter((one) => one !== null && one !== undefined && one !== false));
  return element;
}

function fill(element, ...inner) {
  element.replaceChildren(...inner.flat().filter((one) => one !== null && one !== undefined && one !== false));
  return element;
}

const STATES = {
  running: ["▶", "running"],
  done: ["✓", "done"],
  interrupted: ["‖", "interrupted"],
  failed: ["✕", "failed"],
  silent: ["?", "silent: it has not ended, and nothing was written lately"],
  empty: ["·", "nothing written yet"],
};

function stateMark(state) {
  const [sign, meaning] = STATES[state] || ["?", state];
  return make(`span.state.${state}`, { title: meaning }, make("span", { "aria-hidden": "true" }, sign), " ", state);
}

function runLink(name) {
  return make("a", { href: "#/run/" + encodeURIComponent(name) }, name);
}

function table(head, rows, options = {}) {
  const cells = (tag, row) => row.map((cell, place) =>
    make(tag + (options.left && options.left.includes(place) ? ".left" : ""),
      tag === "th" ? { scope: "col" } : {}, cell ?? "–"));
  return make("div.scroll", { tabindex: "0", role: "region", "aria-label": options.label || "table" },
    make("table", {}, make("thead", {}, make("tr", {}, cells("th", head))),
      make("tbody", {}, rows.map((row) => make("tr", {}, cells("td", row))))));
}
