"use strict";
// The page of one run: figures, diagnosis, curves, policy lag, replay, machine, workers, films, messages, settings.

const SECTIONS = [
  ["Returns", "Return of an episode: training episodes explore, evaluations do not. Band: from their least to their greatest episode.", null],
  ["Learning", "What the learner reports of its updates.", (name) => name.startsWith("agent/") && name !== "agent/priority"],
  ["Speed", "", (name) => ["env_steps_per_second", "updates_per_second", "updates_per_step"].includes(name)],
  ["Policy lag", "How many updates old the weights were that chose the steps learned from.",
    (name) => /^(policy_lag_mean|lag_wait_seconds)$/.test(name)],
  ["Replay", "", (name) => ["replay_size", "samples_per_insert", "agent/priority"].includes(name)],
  ["Machine", "The machine of the run's main process.", (name) => name.startsWith("machine/")],
  ["Inference", "", (name) => name.startsWith("inference/")],
  ["Hosts", "Traffic with other hosts.", (name) => name.startsWith("hosts/")],
  ["Faults", "", (name) => ["restarts", "dropped"].includes(name)],
  ["Own metrics", "", () => true],
];
const NOT_DRAWN = new Set(["env_steps", "updates", "wall_seconds", "episodes", "train_return", "eval_return",
  "best_eval_return", "policy_lag_p95", "policy_lag_max", "weights_version", "machine/memory_bytes"]);
const ZERO_IS_NO_NEWS = new Set(["restarts", "dropped", "lag_wait_seconds"]);
const TITLES = {
  env_steps_per_second: "environment steps per second", updates_per_second: "learner updates per second",
  updates_per_step: "updates per environment step", policy_lag_mean: "policy lag", replay_size: "items in the replay",
  samples_per_insert: "samples per insert", lag_wait_seconds: "waiting for the learner",
  "agent/priority": "mean priority of a batch", "machine/cpu": "processors in use",
  "machine/memory_used": "memory in use", restarts: "restarts", dropped: "dropped",
};
const FROM_ZERO = /per_second|replay_size|policy_lag|^machine|samples_per|restarts|dropped|_seconds$/;

const runPage = { axis: "env_steps", name: "", data: null, cards: new Map() };

runPage.open = async (main, name) => {
  const asked = location.hash;
  const data = await ask("curves", { run: name });
  if (location.hash !== asked) return; // another page is shown now
  runPage.cards.forEach((card) => card.drop());
  Object.assign(runPage, { name, data, cards: new Map(), askedAt: {} });
  runPage.head = make("div");
  runPage.causes = make("section", { "aria-label": "diagnosis" });
  runPage.curves = make("div");
  runPage.workers = make("section", { "aria-label": "workers" });
  runPage.watched = make("section", { "aria-label": "live episode" });
  runPage.saved = make("section", { "aria-label": "saved replay" });
  runPage.films = make("section", { "aria-label": "films" });
  runPage.messages = make("section", { "aria-label": "messages" });
  runPage.settings = make("section", { "aria-label": "settings" });
  fill(main, runPage.head, runPage.watched, runPage.causes, runPage.curves, runPage.saved, runPage.workers, runPage.films,
    runPage.messages, runPage.settings);
  runPage.layout();
  runPage.draw();
  runPage.more();
};

runPage.refresh = async () => {
  const known = runPage.data;
  const fresh = await ask("curves", { run: runPage.name, cursor: known.cursor });
  if (runPage.data !== known) return; // another run was opened
  if (!fresh.whole) {
    for (const kind of ["status", "evaluations", "tuning"]) fresh[kind] = appended(known[kind], fresh[kind]);
    fresh.metrics = known.metrics;
  }
  const names = (data) => Object.keys(data.status).concat(data.evaluations.mean ? ["evaluations"] : []).sort().join();
  const anew = names(fresh) !== names(known);
  runPage.data = fresh;
  if (anew && !fresh.whole) return runPage.open(document.getElementById("main"), runPage.name);
  if (anew) runPage.layout();
  runPage.draw();
  runPage.more();
};

function appended(known, fresh) {
  const before = known.wall_seconds ? known.wall_seconds.length : 0;
  const added = fresh.wall_seconds ? fresh.wall_seconds.length : 0;
  const found = {};
  for (const name of new Set([...Object.keys(known), ...Object.keys(fresh)]))
    found[name] = [...(known[name] || Array(before).fill(null)), ...(fresh[name] || Array(added).fill(null))];
  return found;
}

// Sections and empty cards, by the metrics that there are.
runPage.layout = () => {
  runPage.cards.forEach((card) => card.drop());
  runPage.cards.clear();
  const nothing = (name) => ZERO_IS_NO_NEWS.has(name) && !runPage.data.status[name].some((value) => value);
  const left = new Set(Object.keys(runPage.data.status).filter((name) => !NOT_DRAWN.has(name) && !nothing(name)));
  const parts = [];
  for (const [title, meaning, belongs] of SECTIONS) {
    const names = title === "Returns" ? ["return"] : [...left].filter(belongs);
    names.forEach((name) => left.delete(name));
    if (!names.length) continue;
    const grid = make("div.cards", {}, names.map((name) => runPage.card(name).figure));
    if (title === "Policy lag") runPage.lagPlace = grid.appendChild(make("div.slot"));
    const controls = title === "Returns" ? axisChoice(runPage.axis, (axis) => { runPage.axis = axis; runPage.draw(); }) : null;
    parts.push(make("section", { "aria-label": title }, make("h2", {}, title, controls),
      meaning ? make("p.quiet", {}, meaning) : null, grid));
  }
  fill(runPage.curves, parts);
};

runPage.card = (name) => {
  const about = runPage.data.metrics[name] || {};
  const card = name === "return"
    ? chart({ title: "return", unit: "reward", height: 300, goal: runPage.data.goal, wide: true })
    : chart({ title: TITLES[name] || name.replace(/^(agent|inference|hosts|machine)\//, "").replaceAll("_", " "),
      unit: name === "machine/memory_used" ? "GiB" : about.unit, meaning: about.meaning, healthy: about.healthy,
      fromZero: FROM_ZERO.test(name) });
  runPage.cards.set(name, card);
  return card;
};

runPage.draw = () => {
  const { data } = runPage;
  runPage.drawHead(data);
  const rows = data.status[runPage.axis] ? data.status : { [runPage.axis]: [] };
  const axis = axisOf(runPage.axis, rows[runPage.axis]);
  for (const [name, card] of runPage.cards) {
    if (name === "return") drawReturns(card, data, axis);
    else drawMetric(card, name, rows, axis);
  }
  if (runPage.lagPlace) {
    const total = Object.values(data.lag).reduce((sum, one) => sum + one, 0);
    const rows = Object.entries(data.lag).map(([least, count]) => [least, count / total]);
    fill(runPage.lagPlace, total ? bars({ title: "policy lag of all steps", unit: "updates",
      meaning: "share of the steps learned from, by their lag; each line counts up to the next", rows }) : null);
  }
  drawMessages(runPage.messages, data.messages);
};

function drawMetric(card, name, rows, axis) {
  const scale = name === "machine/memory_used" ? 2 ** 30 : 1;
  const values = (rows[name] || []).map((value) => value === null ? null : value / scale);
  if (name === "policy_lag_mean")
    return card.set(axis.x, [{ label: "mean", values, colour: seriesColour(0) },
      { label: "95 %", values: rows.policy_lag_p95 || [], colour: seriesColour(1), dash: 1, width: 1.5 }], [], axis.label);
  const noisy = name.startsWith("agent/") && values.length > 60;
  const series = noisy ? [{ label: "", values, colour: seriesColour(0), faint: true },
    { label: "mean", values: average(values, Math.ceil(values.length / 30)), colour: seriesColour(0) }]
    : [{ label: "value", values, colour: seriesColour(0), width: 1.6 }];
  return card.set(axis.x, series, [], axis.label);
}

// Evaluations and training episodes have rows of their own: joined on the x axis.
function drawReturns(card, data, axis) {
  const returns = data.status.train_return || [];
  const smooth = average(returns, Math.max(3, Math.ceil(returns.length / 25)));
  const evaluations = data.evaluations;
  const at = (evaluations[runPage.axis] || []).map((x) => x / axis.scale);
  const parts = [[axis.x, returns, smooth]];
  if (at.length) parts.push([at, evaluations.mean, evaluations.low || evaluations.mean, evaluations.high || evaluations.mean]);
  const sorted = parts.map(([x, ...values]) => {
    const order = x.map((_, place) => place).filter((place) => x[place] !== null && x[place] !== undefined).sort((a, b) => x[a] - x[b]);
    return [order.map((place) => x[place]), ...values.map((one) => order.map((place) => one[place] ?? null))];
  });
  const [x, ...columns] = sorted.length > 1 ? uPlot.join(sorted) : sorted[0];
  const clean = columns.map((one) => [...one].map((value) => value ?? null));
  const [training, evaluated] = [seriesColour(0), seriesColour(1)];
  const series = [{ label: "", values: clean[0], colour: training, faint: true },
    { label: "training", values: clean[1], colour: training, width: 1.6 }];
  if (at.length)
    series.push({ label: "evaluation", values: clean[2], colour: evaluated, width: 2.2, points: true },
      { label: "", values: clean[3], colour: evaluated, faint: true, width: 0.5 },
      { label: "", values: clean[4], colour: evaluated, faint: true, width: 0.5 });
  card.set(x, series, at.length ? [[4, 3, evaluated]] : [], axis.label);
}

runPage.drawHead = (data) => {
  const { run, last, finals } = data;
  const running = run.state === "running";
  const spread = (one) => one && one.std !== undefined ? `± ${brief(one.std)}, fresh seeds` : "fresh seeds";
  const figures = [
    ["return now", brief(last.eval_return ?? last.train_return), last.eval_return === undefined ? "training" : "evaluation"],
    ["best return", brief(last.best_eval_return), "evaluation"],
    ["final, best weights", finals.best && brief(finals.best.mean), spread(finals.best)],
    ["final, last weights", finals.last && brief(finals.last.mean), spread(finals.last)],
    ["environment steps", brief(last.env_steps), data.limits.env_steps ? `of ${brief(data.limits.env_steps)}` : ""],
    ["steps per second", running ? brief(last.env_steps_per_second) : null, ""],
    ["updates", brief(last.updates), running ? `${brief(last.updates_per_second)} per second` : ""],
    ["policy lag", brief(last.policy_lag_mean), "updates, mean"],
    ["replay", data.capacity ? brief(last.replay_size) : null,
      `of ${brief(data.capacity)} items`],
    ["trained for", clock(last.wall_seconds), data.limits.minutes ? `of ${data.limits.minutes} min` : ""],
    ["restarts", brief(last.restarts), "of workers"],
    ["dropped", brief(last.dropped), "of all kinds"],
  ].filter(([, value]) => value && value !== "–");
  const what = [run.preset || run.env, run.agent, run.topology, run.seed === null ? "" : `seed ${run.seed}`, run.placement]
    .filter(Boolean).join("  ·  ");
  const written = running ? `in phase ${run.phase}` : `last written ${ago(run.at)}`;
  const signature = JSON.stringify([figures, what, run.state, written]);
  if (signature === runPage.headSaid && runPage.head.firstChild) return;
  runPage.headSaid = signature;
  fill(runPage.head, make("h1", {}, run.name, " ", stateMark(run.state)),
    make("p.quiet", {}, what, "  ·  ", written), progress(data),
    make("dl.figures", {}, figures.map(([name, value, more]) =>
      make("div", {}, make("dt", {}, name), make("dd", {}, value, more ? make("small", {}, more) : null)))));
};

function progress({ run, last, limits }) {
  if (run.state !== "running") return null;
  const shares = [limits.env_steps ? last.env_steps / limits.env_steps : 0,
    limits.minutes ? last.wall_seconds / (60 * limits.minutes) : 0].filter(Number.isFinite);
  const share = Math.min(1, Math.max(0, ...shares));
  return share > 0 ? make("progress", { max: 1, value: share, "aria-label": `${Math.round(100 * share)} % of its limit` }) : null;
}

// What costs the server more is asked for less often.
runPage.more = () => {
  const name = runPage.name;
  const every = (question, seconds, draw) => {
    const now = performance.now();
    const done = runPage.askedAt[question];
    const rest = runPage.data.run.state === "running" || question === "watched" ? seconds : 10 * seconds;
    if (done !== undefined && now - done < 1000 * rest) return;
    runPage.askedAt[question] = now;
    ask(question, { run: name }).then((answer) => runPage.name === name && draw(answer)).catch(() => {});
  };
  every("workers", 5, (answer) => drawWorkers(runPage.workers, answer, runPage.data.run.state));
  every("diagnosis", 60, (answer) => drawCauses(runPage.causes, answer));
  if (live) every("watched", 3, (answer) => drawWatched(runPage.watched, answer));
  every("replay", 120, (answer) => drawSavedReplay(runPage.saved, answer));
  every("films", 15, (answer) => drawFilms(runPage.films, answer, name));
  every("settings", 1e9, (answer) => drawSettings(runPage.settings, answer.settings));
};

function drawCauses(place, { causes, trouble, risen, evaluations }) {
  const body = trouble ? [make("p.quiet", {}, `apexrl doctor cannot judge this run: ${trouble}`)]
    : causes.length ? [make("ol.causes", {}, causes.map((cause) => make("li", {},
      make("strong", {}, cause.title), " ", make(`span.tag.${cause.likely ? "likely" : "possible"}`, {}, cause.likely ? "likely" : "possible"),
      make("p.quiet", {}, cause.evidence.join("; ")),
      make("p", {}, "Change: ", make("code", {}, cause.change)))))]
      : [make("p.quiet", {}, evaluations ? `Nothing looks wrong${risen < 0.5 ? ", though the returns have not risen clearly yet" : ""}.`
        : "No evaluation has ended yet.")];
  fill(place, make("h2", {}, "Diagnosis"), body);
}

function drawSavedReplay(place, { size, capacity, inserted, sampled, drawn, priorities, ages, trouble }) {
  if (trouble) return fill(place, make("h2", {}, "Saved replay"), make("p.quiet", {}, `It is not shown: ${trouble}`));
  if (size === undefined) return fill(place);
  const rows = (bins) => bins.map(([from, to, share]) => [`${brief(from)} … ${brief(to)}`, share]);
  return fill(place, make("h2", {}, "Saved replay"),
    make("p.quiet", {}, `${brief(size)} of ${brief(capacity)} items; ${brief(inserted)} inserted, ${brief(sampled)} sampled. `
      + `Histograms of ${drawn} drawn items, as shares of all; apexrl replay inspect shows items, too.`),
    make("div.cards.spans", {}, priorities.length ? bars({ title: "priority |δ|", unit: "TD error", rows: rows(priorities) }) : null,
      ages.length ? bars({ title: "age", unit: "learner updates", rows: rows(ages) }) : null));
}

// Greedy episodes with the newest weights, while apexrl watch plays them.
function drawWatched(place, { run, weights, episode, last_return: last, trouble }) {
  if (!run) return fill(place);
  const words = !episode && !trouble ? "The newest weights are being read." : trouble ? `It cannot be played now: ${trouble}. It is tried again.`
    : `Episode ${episode}, greedy, weights ${weights}` + (last === null ? "" : `; the last return was ${brief(last)}`)
      + ". The line is what the agent expects of the rest of the episode.";
  if (!place.querySelector("img"))
    fill(place, make("h2", {}, "Live episode"), make("p.quiet", { role: "status" }),
      make("img.watch", { src: "watched", alt: "the environment as the agent plays it" }));
  place.querySelector("p").textContent = words;
  return place;
}

function drawFilms(place, films, name) {
  if (!films.length) return fill(place);
  const shown = films.slice(0, 6);
  const known = new Set([...place.querySelectorAll("video")].map((one) => one.dataset.film));
  if (shown.every((one) => known.has(one.file + one.at)) && known.size === shown.length) return place;
  const address = (film) => "film?" + new URLSearchParams({ run: name, file: film.file });
  return fill(place, make("h2", {}, "Films"), make("div.films", {}, shown.map((film) => make("figure.card", {},
    live ? make("video", { controls: true, preload: "metadata", src: address(film), "data-film": film.file + film.at, loop: true }) : null,
    make("figcaption", {}, make("strong", {}, film.file), make("span.unit", {}, bytes(film.bytes) + ", " + ago(film.at)),
      film.steps ? make("span.meaning", {}, `return ${brief(film.return)} in ${brief(film.steps)} steps`) : null)))),
  films.length > shown.length ? make("p.quiet", {}, `${films.length - shown.length} more in the run folder`) : null);
}

function drawMessages(place, messages) {
  const rows = messages.slice(-30).reverse().map((one) => [clock(one.wall_seconds), brief(one.env_steps),
    make(`span.level.${one.level}`, {}, one.level), one.text]);
  return fill(place, rows.length ? [make("h2", {}, "Messages"),
    table(["after", "env steps", "level", "text"], rows, { left: [2, 3], label: "messages" })] : []);
}

function drawSettings(place, settings) {
  const body = make("div");
  const draw = (all) => fill(body, table(["setting", "value", "default", "meaning"], settings.filter((one) => all || one[3])
    .map(([name, value, usual, , meaning]) => [make("code", {}, name), spelt(value), spelt(usual), meaning]),
  { left: [0, 1, 2, 3], label: "settings" }));
  draw(false);
  return fill(place, make("h2", {}, "Settings",
    make("label.choice", {}, make("input", { type: "checkbox", onchange: (event) => draw(event.target.checked) }),
      " also those with their defaults")), body);
}

function spelt(value) {
  if (value === true || value === false) return value ? "yes" : "no";
  return value === null || value === undefined || value === "" ? "–" : String(value);
}
