// What pages do with scripts beyond htmx: relative times in the viewer's zone, and the keyboard. Pages read and act without it.
"use strict";

const UNITS = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];

function distance(seconds) {
  const [size, unit] = UNITS.find(([one]) => Math.abs(seconds) >= one) ?? [1, "s"];
  const count = Math.round(Math.abs(seconds) / size);
  return seconds >= 0 ? `${count} ${unit} ago` : `in ${count} ${unit}`;
}

function showTimes() {
  for (const one of document.querySelectorAll("time[datetime]")) {
    const moment = new Date(one.dateTime);
    if (Number.isNaN(moment.getTime())) continue;
    const text = distance((Date.now() - moment.getTime()) / 1000);
    if (one.textContent !== text) one.textContent = text;
    const exact = moment.toLocaleString();
    if (one.title !== exact) one.title = exact;
  }
}

// a row is what `j` and `k` go through: those in folded details are left out
function move(step) {
  const rows = [...document.querySelectorAll("main tbody tr, main article")].filter((row) => row.checkVisibility());
  const at = rows.findLastIndex((row) => row.contains(document.activeElement));
  const row = rows[Math.min(rows.length - 1, Math.max(0, at + step))];
  row?.querySelector("a, summary, button")?.focus();
}

document.addEventListener("keydown", (event) => {
  if (event.target.closest("input, textarea, select")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "/") {
    event.preventDefault();
    document.getElementById("search")?.focus();
  } else if (event.key === "j") move(1);
  else if (event.key === "k") move(-1);
});

// What comes from the server knows neither what is unfolded here nor how long ago a time is by now.
window.htmx?.registerExtension("console", {
  htmx_before_morph_attr: (_, { attrName }) => attrName !== "open",
  htmx_before_morph_node: (_, { oldNode, newNode }) => !(oldNode.matches?.("time") && oldNode.dateTime === newNode.dateTime),
});

showTimes();
setInterval(showTimes, 1000);
document.addEventListener("htmx:after:swap", showTimes);
