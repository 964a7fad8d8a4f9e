"use strict";

// Sorts the table of kernels by the column whose heading is clicked: once upwards, again downwards.

const valueOf = (row, at) => {
  const cell = row.children[at], number = cell.getAttribute("data-value");
  return number === null ? cell.textContent : Number(number);
};
const compare = (one, other) => one < other ? -1 : one > other ? 1 : 0;
const sortBy = (table, at) => {
  const heads = [...table.querySelectorAll("th")], body = table.querySelector("tbody");
  const isUp = heads[at].getAttribute("aria-sort") !== "ascending";
  heads.forEach((head, number) => head.setAttribute("aria-sort", number !== at ? "none" : isUp ? "ascending" : "descending"));
  const rows = [...body.children].sort((one, other) => compare(valueOf(one, at), valueOf(other, at)) * (isUp ? 1 : -1));
  body.append(...rows);
};
for (const table of document.querySelectorAll("table"))
  [...table.querySelectorAll("th button")].forEach((button, at) => button.addEventListener("click", () => sortBy(table, at)));
