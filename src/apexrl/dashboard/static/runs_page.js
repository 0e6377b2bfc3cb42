"use strict";
// The page of all runs: a table to sort, filter and choose from.

const COLUMNS = [
  ["run", (run) => run.name],
  ["state", (run) => run.state],
  ["environment", (run) => run.preset || run.env],
  ["agent", (run) => run.agent],
  ["topology", (run) => run.topology],
  ["seed", (run) => run.seed],
  ["env steps", (run) => run.env_steps],
  ["steps/s", (run) => run.steps_per_second],
  ["return", (run) => run.return],
  ["best return", (run) => run.best],
  ["trained for", (run) => run.seconds],
  ["written", (run) => run.at],
];
const TEXTS = 5; // so many columns from the left hold text

const runsPage = { sort: 11, down: true, words: "", chosen: new Set(), runs: [] };

runsPage.open = async (main) => {
  const count = make("span.quiet", { role: "status" });
  const filter = make("input", { type: "search", placeholder: "filter: words of name, state, environment, agent …",
    "aria-label": "filter runs", value: runsPage.words,
    oninput: (event) => { runsPage.words = event.target.value; runsPage.draw(); } });
  const compare = make("button", { onclick: runsPage.compare }, "Compare");
  const body = make("tbody");
  const every = make("input", { type: "checkbox", "aria-label": "choose all runs that are shown",
    onchange: (event) => { runsPage.shown().forEach((run) => event.target.checked ? runsPage.chosen.add(run.name)
      : runsPage.chosen.delete(run.name)); runsPage.draw(); } });
  const heads = COLUMNS.map(([name], place) => make("th" + (place < TEXTS ? ".left" : ""), { scope: "col" },
    make("button.plain", { onclick: () => runsPage.sortBy(place) }, name)));
  Object.assign(runsPage, { count, compareButton: compare, body, heads, every });
  fill(main, make("h1", {}, "Runs"), make("div.controls", {}, filter, compare, count),
    make("div.scroll", { tabindex: "0", role: "region", "aria-label": "runs" },
      make("table.runs", {}, make("thead", {}, make("tr", {}, make("th", {}, every), heads)), body)));
  await runsPage.refresh();
};

runsPage.refresh = async () => {
  runsPage.runs = await ask("runs");
  runsPage.draw();
};

runsPage.sortBy = (place) => {
  runsPage.down = runsPage.sort === place ? !runsPage.down : place >= TEXTS;
  runsPage.sort = place;
  runsPage.draw();
};

runsPage.shown = () => {
  const words = runsPage.words.toLowerCase().split(/\s+/).filter(Boolean);
  const text = (run) => [run.name, run.state, run.env, run.preset, run.agent, run.topology, run.placement].join(" ").toLowerCase();
  const of = COLUMNS[runsPage.sort][1];
  const missing = (value) => value === null || value === undefined || value === "";
  return runsPage.runs.filter((run) => words.every((word) => text(run).includes(word))).sort((one, two) => {
    const [a, b] = [of(one), of(two)];
    if (missing(a) || missing(b)) return missing(a) - missing(b) || one.name.localeCompare(two.name);
    const order = typeof a === "number" ? a - b : String(a).localeCompare(String(b), undefined, { numeric: true });
    return (runsPage.down ? -order : order) || one.name.localeCompare(two.name);
  });
};

runsPage.draw = () => {
  const shown = runsPage.shown(), now = Date.now() / 1000;
  runsPage.heads.forEach((head, place) => head.setAttribute("aria-sort",
    place !== runsPage.sort ? "none" : runsPage.down ? "descending" : "ascending"));
  const focused = document.activeElement && document.activeElement.dataset ? document.activeElement.dataset.run : null;
  fill(runsPage.body, shown.length ? shown.map((run) => row(run, now)) : make("tr", {}, make("td.left", { colspan: 13 },
    runsPage.runs.length ? "No run has all of these words." :
      "There are no runs here yet. Start one with: apexrl train cartpole. It will appear by itself.")));
  if (focused) {
    const again = runsPage.body.querySelector(`[data-run="${CSS.escape(focused)}"]`);
    if (again) again.focus();
  }
  const running = runsPage.runs.filter((run) => run.state === "running").length;
  const some = runsPage.chosen.size;
  runsPage.count.textContent = `${shown.length} of ${runsPage.runs.length} runs, ${running} running`;
  runsPage.compareButton.textContent = some ? `Compare ${some} chosen` : `Compare all ${shown.length} shown`;
  runsPage.compareButton.disabled = !shown.length;
  runsPage.every.checked = shown.length > 0 && shown.every((run) => runsPage.chosen.has(run.name));
};

function row(run, now) {
  const choose = make("input", { type: "checkbox", "aria-label": `choose ${run.name}`, "data-run": "choice " + run.name,
    checked: runsPage.chosen.has(run.name), onchange: (event) => {
      if (event.target.checked) runsPage.chosen.add(run.name); else runsPage.chosen.delete(run.name);
      runsPage.draw();
    } });
  const link = runLink(run.name);
  link.dataset.run = "link " + run.name;
  const speed = run.state === "running" ? brief(run.steps_per_second) : "";
  return make("tr", {}, make("td", {}, choose), make("td.left", {}, link,
    run.placement ? make("span.tag", {}, run.placement) : null), make("td.left", {}, stateMark(run.state)),
  make("td.left", {}, run.preset || run.env || "–"), make("td.left", {}, run.agent || "–"),
  make("td.left", {}, run.topology || "–"),
  ...[run.seed ?? "–", brief(run.env_steps), speed, brief(run.return), brief(run.best), clock(run.seconds),
    ago(run.at, now)].map((text) => make("td", {}, String(text))));
}

runsPage.compare = () => {
  const names = (runsPage.chosen.size ? runsPage.runs.filter((run) => runsPage.chosen.has(run.name)) : runsPage.shown())
    .map((run) => run.name);
  comparePage.choose(names);
  location.hash = "#/compare";
};
