"use strict";
// Where answers come from: the server, or the page itself when it was saved as one file.

const held = window.APEXRL_HELD || null;
const live = held === null;
let lastTrouble = "";

async function ask(question, parameters = {}) {
  const query = new URLSearchParams(parameters).toString();
  if (!live) {
    const asked = Object.entries(parameters).filter(([name]) => name !== "cursor");
    const key = question + asked.map(([name, value]) => `&${name}=${value}`).join("");
    if (key in held.answers) return held.answers[key];
    throw new Error("this file does not hold that");
  }
  let answer;
  try {
    answer = await fetch(`answers/${question}${query ? "?" + query : ""}`, { signal: AbortSignal.timeout(20000) });
  } catch {
    note("The dashboard does not answer: it was ended, or is busy. Asking again every few seconds.");
    throw new Error("no answer");
  }
  note("");
  if (!answer.ok) throw new Error(answer.status === 404 ? "gone" : await answer.text());
  return answer.json();
}

function note(text) {
  if (text === lastTrouble) return;
  lastTrouble = text;
  let place = document.getElementById("trouble");
  if (!place) {
    place = make("p.trouble", { id: "trouble", role: "status" });
    document.body.prepend(place);
  }
  place.textContent = text;
  place.hidden = !text;
}
