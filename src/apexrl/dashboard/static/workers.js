"use strict";
// The map of workers: a square each, shaded by its rate, with a sign where it is in trouble.

const SIGNS = { dead: "✕", silent: "?", stalled: "■", slow: "▼", stale: "◷", dropping: "◇", restarted: "↻" };
const MEANS = {
  dead: "no process works there", silent: "no sign of life for 10 s", stalled: "it hangs, or makes nothing",
  slow: "below half of its role's median", stale: "it gets no new weights", dropping: "it lost data",
  restarted: "it was restarted, and works",
};

function drawWorkers(place, { workers, roles, at, now, host }, state) {
  if (!workers.length) {
    const why = state === "running" ? "The list of workers is written every 10 s; there is none yet."
      : "Workers are listed while a run is at work.";
    return fill(place, make("h2", {}, "Workers"), make("p.quiet", {}, why));
  }
  const medians = Object.fromEntries(roles.map((one) => [one.role, one.median]));
  const known = new Set(workers.map((one) => one[3]).filter(Boolean));
  const key = Object.keys(SIGNS).filter((one) => known.has(one))
    .map((one) => make("span", {}, make(`i.worker.${one}`, { "aria-hidden": "true" }, SIGNS[one]), ` ${one}: ${MEANS[one]}`));
  const maps = roles.map(({ role, workers: count }) => make("div.map", {},
    make("h3", {}, `${role} × ${count}`), make("div.squares", { role: "img", "aria-label": mapWords(role, workers) },
      workers.filter((one) => one[1] === role).map((one) => square(one, medians[role])))));
  const inTrouble = workers.filter((one) => one[3]);
  const shown = inTrouble.slice(0, 50);
  fill(place, make("h2", {}, "Workers"),
    make("p.quiet", {}, `As ${host || "the main process"} saw them ${ago(at, now)}. The stronger its colour, the faster a worker is beside the median of its role.`),
    table(["role", "workers", "well", "median rate", "together", "unit", "restarts"],
      roles.map((one) => [one.role, one.workers, one.well, brief(one.median), brief(one.together), one.unit, one.restarts].map(String)),
      { left: [0, 5], label: "workers by role" }),
    key.length ? make("p.key", {}, key) : null, make("div.maps", {}, maps),
    shown.length ? [make("h3", {}, "In trouble, the worst first"),
      table(["worker", "trouble", "state", "rate", "heard of", "restarts", "process"], shown.sort((a, b) => order(a) - order(b))
        .map(([name, , status, trouble, rate, unit, age, restarts, pid]) => [name, `${SIGNS[trouble]} ${trouble}`, status,
          `${brief(rate)} ${unit}`, `${Math.round(age)} s ago`, String(restarts), String(pid ?? "–")]),
      { left: [0, 1, 2], label: "workers in trouble" }),
      inTrouble.length > 50 ? make("p.quiet", {}, `${inTrouble.length - 50} more in trouble`) : null]
      : make("p.quiet", {}, "All workers are well."));
  return place;
}

const order = (one) => Object.keys(SIGNS).indexOf(one[3]);

function mapWords(role, workers) {
  const some = workers.filter((one) => one[1] === role);
  return `${some.length} workers of role ${role}, ${some.filter((one) => one[3]).length} in trouble`;
}

function square([name, , state, trouble, rate, unit, age, restarts], median) {
  const share = median ? Math.min(2, rate / median) : rate > 0 ? 1 : 0;
  const words = `${name}: ${state}${trouble ? ", " + trouble : ""}, ${brief(rate)} ${unit}, heard of ${Math.round(age)} s ago, ${restarts} restarts`;
  return make("i.worker" + (trouble ? "." + trouble : ""), { title: words, style: { "--share": (0.2 + 0.4 * share).toFixed(2) } },
    SIGNS[trouble] || "");
}
