"use strict";
// Which page is shown, and when it asks again.

const PERIOD_MS = 2000;
let shownPage = null;
let asking = false;

function header() {
  const themes = ["", "light", "dark"];
  const said = () => `Colours: ${document.documentElement.dataset.theme || "as the system"}`;
  const button = make("button.plain", { onclick: () => {
    const root = document.documentElement;
    const next = themes[(themes.indexOf(root.dataset.theme || "") + 1) % themes.length];
    if (next) root.dataset.theme = next; else delete root.dataset.theme;
    try { localStorage.setItem("apexrl-theme", next); } catch { /* no storage: it lasts as long as the page */ }
    button.textContent = said();
    redrawCharts();
  } }, said());
  fill(document.getElementById("top"), make("nav", { "aria-label": "pages" }, make("a.name", { href: "#/" }, "apexrl"),
    make("a", { href: "#/" }, "Runs"), make("a", { href: "#/compare" }, "Compare")),
  live ? null : make("span.quiet", {}, held.title), button);
}

async function show() {
  const main = document.getElementById("main");
  const asked = location.hash;
  const [path] = asked.slice(1).split("?");
  [...charts].forEach((one) => one.drop());
  const run = path.startsWith("/run/") ? decodeURIComponent(path.slice(5)) : "";
  const page = run ? runPage : path.startsWith("/compare") ? comparePage : runsPage;
  shownPage = null;
  document.title = run ? `${run} – apexrl` : "apexrl";
  fill(main, make("p.quiet", {}, "Reading …"));
  try {
    await page.open(main, run);
    if (location.hash !== asked) return;
    shownPage = page;
    performance.mark("drawn");
  } catch (error) {
    if (location.hash !== asked) return;
    fill(main, make("p", {}, error.message === "gone" ? `There is no run ${run} here: it was removed, or has another name.`
      : `This page could not be drawn (${error.message}). It is tried again.`), make("a", { href: "#/" }, "All runs"));
    if (live && error.message !== "gone") setTimeout(() => shownPage === null && show(), 3 * PERIOD_MS);
  }
}

async function again() {
  if (!live || document.hidden || asking || shownPage === null) return;
  asking = true;
  const page = shownPage;
  try {
    await page.refresh();
  } catch (error) {
    if (error.message === "gone" && page === shownPage) await show();
  } finally {
    asking = false;
  }
}

try {
  const theme = localStorage.getItem("apexrl-theme");
  if (theme) document.documentElement.dataset.theme = theme;
} catch { /* no storage */ }

header();
addEventListener("hashchange", show);
addEventListener("visibilitychange", again);
setInterval(again, PERIOD_MS);
show();
