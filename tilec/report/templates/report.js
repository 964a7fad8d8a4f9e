"use strict";
const root = document.documentElement;

const theme = document.getElementById("theme");
theme.hidden = false;
const isDark = () => root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
const named = () => { theme.textContent = isDark() ? "Light" : "Dark"; };
theme.addEventListener("click", () => { root.dataset.theme = isDark() ? "light" : "dark"; named(); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", named);
named();

// A line of the kernel, and what became of it: all that has the same data-at is one thing.
const place = (node) => node.closest("[data-at]");
const same = (at) => [...document.querySelectorAll("[data-at]")].filter((one) => one.dataset.at === at);
const light = (node) => {
  const found = place(node);
  if (!found) return;
  for (const one of document.querySelectorAll(".lit")) one.classList.remove("lit");
  for (const one of same(found.dataset.at)) one.classList.add("lit");
};
document.addEventListener("mouseover", (event) => light(event.target));
document.addEventListener("focusin", (event) => light(event.target));
document.addEventListener("click", (event) => {
  const found = place(event.target);
  if (!found) return;
  event.preventDefault();
  const here = found.closest("pre");
  for (const panel of document.querySelectorAll(".code pre")) {
    const first = panel === here ? null : same(found.dataset.at).find((one) => panel.contains(one));
    if (first) panel.scrollTop = first.offsetTop - panel.clientHeight / 3;
  }
});
