"use strict";
// Groups of runs beside each other: means with 95 % intervals, final figures, and the settings that differ.

const comparePage = { chosen: [], metric: "evaluation", axis: "env_steps", by: "", thin: true, card: null };

// The choice outlives a reload of the page, as long as its tab is there.
comparePage.choose = (names) => {
  comparePage.chosen = names;
  try { sessionStorage.setItem("apexrl-chosen", JSON.stringify(names)); } catch { /* no storage */ }
};

try { comparePage.chosen = JSON.parse(sessionStorage.getItem("apexrl-chosen") || "[]"); } catch { /* no storage */ }

comparePage.open = async (main) => {
  comparePage.picture = chart({ title: "", height: 380, wide: true });
  comparePage.parts = { head: make("div"), legend: make("div.legend"), figures: make("div"), settings: make("div") };
  const { head, legend, figures, settings } = comparePage.parts;
  comparePage.said = comparePage.offered = "";
  fill(main, make("h1", {}, "Compare"), head, legend, comparePage.picture.figure, figures, settings);
  await comparePage.refresh();
};

comparePage.refresh = async () => {
  const asked = live ? { runs: comparePage.chosen.join("\n"), metric: comparePage.metric, axis: comparePage.axis, by: comparePage.by }
    : { metric: comparePage.metric, axis: comparePage.axis };
  const answer = await ask("compare", asked);
  const text = JSON.stringify(answer);
  if (text === comparePage.said) return;
  comparePage.said = text;
  comparePage.draw(answer);
};

comparePage.change = (what) => {
  Object.assign(comparePage, what);
  comparePage.refresh().catch((error) => note(`This could not be drawn: ${error.message}`));
};

comparePage.draw = (answer) => {
  const { head, legend, figures, settings } = comparePage.parts;
  const options = (names, chosen) => names.map(([value, label]) => make("option", { value, selected: value === chosen }, label));
  const metrics = [["evaluation", "return of evaluations"], ["train_return", "return of training episodes"],
    ...(live ? answer.metrics.filter((name) => !["env_steps", "updates", "wall_seconds", "train_return"].includes(name)).map((name) => [name, name])
      : [["env_steps_per_second", "environment steps per second"]])];
  const by = Object.keys(answer.differs);
  const { metric, axis, thin } = comparePage;
  const offered = JSON.stringify([answer.runs.length, answer.groups.length, metrics, by, answer.by, metric, axis, comparePage.by, thin]);
  if (offered !== comparePage.offered) fill(head, make("p.quiet", {}, `${answer.runs.length} runs in ${answer.groups.length + answer.left_out} groups. `
    + "Bold: the mean of a group, as far as all its runs go; band: 95 % interval of the mean, by bootstrap over the runs; thin: each run."),
  make("div.controls", {},
    make("label.choice", {}, "metric ", make("select", { onchange: (event) => comparePage.change({ metric: event.target.value }) },
      options(metrics, comparePage.metric))),
    axisChoice(comparePage.axis, (axis) => comparePage.change({ axis })),
    live ? make("label.choice", {}, "group by ", make("select", { onchange: (event) => comparePage.change({ by: event.target.value }) },
      options([["", answer.by.length && !comparePage.by ? answer.by.join(", ") : "what they are"], ...by.map((name) => [name, name])], comparePage.by))) : null,
    make("label.choice", {}, make("input", { type: "checkbox", checked: comparePage.thin, onchange: (event) => {
      comparePage.thin = event.target.checked;
      comparePage.draw(answer);
    } }), " each run")));
  comparePage.offered = offered; // a choice that is open stays open while runs go on
  drawGroups(answer);
  fill(legend, answer.groups.map((group, place) => make("span", {}, sample(place), ` ${group.label} (${group.runs.length})`)),
    answer.left_out ? make("span.quiet", {}, `${answer.left_out} more groups are not drawn: choose fewer runs, or group by another setting`) : null);
  const figure = (one) => one.mean === null ? "–" : brief(one.mean) + (one.interval ? ` (${brief(one.interval[0])} … ${brief(one.interval[1])})` : "");
  fill(figures, make("h2", {}, "Figures"), table(["", "group", "runs", "last value, 95 % interval", "best value, 95 % interval"],
    answer.groups.map((group, place) => [sample(place), group.label, `${group.last.count} of ${group.runs.length}`,
      figure(group.last), figure(group.best)]), { left: [0, 1], label: "figures of the groups" }));
  fill(settings, make("h2", {}, "Settings that differ"), Object.keys(answer.differs).length
    ? table(["setting", ...answer.groups.map((group) => group.label)],
      Object.entries(answer.differs).map(([name, values]) => [make("code", {}, name), ...values]),
      { left: [0, ...answer.groups.map((_, place) => place + 1)], label: "settings that differ" })
    : make("p.quiet", {}, "None."));
};

function sample(place) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", "0 0 28 8");
  svg.setAttribute("class", "sample");
  svg.setAttribute("aria-hidden", "true");
  const line = document.createElementNS("http://www.w3.org/2000/svg", "line");
  for (const [name, value] of Object.entries({ x1: 0, x2: 28, y1: 4, y2: 4, "stroke-width": 3, stroke: seriesColour(place),
    "stroke-dasharray": DASHES[Math.floor(place / 7) % 3].join(" ") })) line.setAttribute(name, value);
  svg.append(line);
  return svg;
}

function drawGroups({ groups }) {
  const { axis, metric } = comparePage;
  const longest = Math.max(0, ...groups.flatMap((group) => Object.values(group.lines).map(([x]) => x[x.length - 1])));
  const { scale, label } = axisOf(axis, [longest]);
  const scaled = (x) => x.map((one) => one / scale);
  const tables = [], series = [], bands = [];
  groups.forEach((group, place) => {
    const [colour, dash] = [seriesColour(place), Math.floor(place / 7) % 3];
    const { x, mean, low, high } = group.mean;
    if (comparePage.thin && group.runs.length > 1)
      for (const [xs, ys] of Object.values(group.lines)) {
        tables.push([scaled(xs), ys]);
        series.push({ label: "", colour, dash, faint: Math.max(0.06, Math.min(0.35, 2 / group.runs.length)) });
      }
    if (!x) return;
    tables.push(low ? [scaled(x), mean, low, high] : [scaled(x), mean]);
    series.push({ label: group.label, colour, dash, width: 2.4, points: x.length < 3 });
    if (low) {
      bands.push([series.length + 1, series.length, colour]);
      series.push({ label: "", colour, faint: true, width: 0.1 }, { label: "", colour, faint: true, width: 0.1 });
    }
  });
  const name = metric === "evaluation" ? "return of evaluations" : metric;
  comparePage.picture.figure.querySelector("strong").textContent = name;
  if (!tables.length) {
    comparePage.picture.set([0], [{ label: "", values: [null], colour: seriesColour(0) }], [], label);
    comparePage.picture.figure.querySelector(".value").textContent = "no run has values of this yet";
    return;
  }
  const [x, ...columns] = uPlot.join(tables);
  comparePage.picture.set(x, series.map((one, place) => ({ ...one, values: columns[place].map((value) => value ?? null) })),
    bands, label, true);
}
