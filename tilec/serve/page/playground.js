"use strict";

const part = (id) => document.getElementById(id);
const token = document.querySelector("meta[name=tilec-token]").content;
const place = (name) => "/kernels/" + name.split("/").map(encodeURIComponent).join("/");
let saved = "";

function say(state) {
  part("state").textContent = state;
}

function show(said, report) {
  part("said").textContent = said;
  part("said").hidden = !said;
  part("said").className = report ? "warnings" : "";
  part("report").hidden = !report;
  if (report) part("report").src = report + "?" + Date.now();
}

async function open(name) {
  const answer = await fetch(place(name));
  const text = await answer.text();
  if (name !== part("kernel").value) return;
  if (!answer.ok) return show(text, null);
  part("text").value = saved = text;
  await compile();
}

async function compile() {
  say("compiling …");
  part("save").disabled = true;
  const began = performance.now();
  const name = part("kernel").value;
  const asked = {text: part("text").value, target: part("target").value, constants: part("constants").value};
  try {
    const answer = await fetch(place(name), {
      method: "POST",
      headers: {"X-Tilec-Token": token},
      body: JSON.stringify(asked),
    });
    if (!answer.ok) throw new Error(await answer.text());
    const outcome = await answer.json();
    if (name !== part("kernel").value) return;  // another one is being opened
    saved = asked.text;
    show(outcome.said, outcome.report);
    const seconds = ((performance.now() - began) / 1000).toFixed(1);
    say(outcome.report ? `saved; compiled in ${seconds} s` : "saved; not compiled");
  } catch (problem) {
    show(String(problem.message), null);
    say("not saved");
  } finally {
    part("save").disabled = false;
  }
}

async function start() {
  const names = await (await fetch("/kernels")).json();
  for (const name of names) part("kernel").append(new Option(name));
  if (!names.length) return say("no kernel in this folder: tilec new makes one");
  await open(part("kernel").value);
}

part("save").addEventListener("click", compile);
part("target").addEventListener("change", compile);
part("constants").addEventListener("change", compile);
part("kernel").addEventListener("change", () => open(part("kernel").value));
part("text").addEventListener("input", () => say(part("text").value === saved ? "" : "not saved"));
part("text").addEventListener("keydown", (event) => {
  if (event.key !== "Tab" || event.shiftKey || event.ctrlKey || event.altKey) return;
  event.preventDefault();
  part("text").setRangeText("    ", part("text").selectionStart, part("text").selectionEnd, "end");
});
addEventListener("keydown", (event) => {
  if (event.key !== "s" || !(event.ctrlKey || event.metaKey)) return;
  event.preventDefault();
  compile();
});
addEventListener("beforeunload", (event) => {
  if (part("text").value !== saved) event.preventDefault();
});
start();
