// What pages do with scripts beyond htmx: times in the viewer's zone, the theme, the keyboard, what is copied, and rows that
// are new while one reads. Pages read and act without it.
"use strict";

const UNITS = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
const EXACT = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "long" });
const CLOCK = new Intl.DateTimeFormat(undefined, { timeStyle: "medium" });
const ROWS = "#live tbody tr[id], #live article[id]";
const element = (id) => document.getElementById(id);

// --- times ---

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
    const exact = EXACT.format(moment);
    if (one.title !== exact) one.title = exact;
  }
}

// --- what waits for a person: in the title, the icon and the rail ---

function showApprovals() {
  const count = Number(element("approvals")?.value ?? NaN);
  if (Number.isNaN(count)) return;
  const title = document.title.replace(/^\(\d+\) /, "");
  document.title = count ? `(${count}) ${title}` : title;
  element("rail-approvals").textContent = count || "";
  const icon = element("icon");
  const href = icon.getAttribute("href").replace(/icon(-waiting)?\.svg$/, count ? "icon-waiting.svg" : "icon.svg");
  if (icon.getAttribute("href") !== href) icon.setAttribute("href", href);
}

// --- the theme ---

function showTheme() {
  const theme = document.documentElement.dataset.theme;
  const button = element("theme");
  button.textContent = { auto: "◐", light: "☀", dark: "☾" }[theme];
  button.title = `Theme: ${theme === "auto" ? "as the system" : theme}`;
  button.setAttribute("aria-label", button.title);
}

function nextTheme() {
  const theme = THEMES[(THEMES.indexOf(document.documentElement.dataset.theme) + 1) % THEMES.length];
  document.documentElement.dataset.theme = theme;
  try {
    localStorage.setItem("goondan-theme", theme);
  } catch {
    // the browser keeps nothing: it holds for this page
  }
  showTheme();
}

// --- what is new: rows that come while one reads are counted, and shown when asked for ---

let latest = null;
let isTaking = false;

function isTouched(field) {
  if (field.type === "hidden") return false;
  if (field.options) return field.selectedIndex !== Math.max(0, [...field.options].findIndex((one) => one.defaultSelected));
  return field.type === "checkbox" || field.type === "radio" ? field.checked !== field.defaultChecked : field.value !== field.defaultValue;
}

function isReading() {
  const live = element("live");
  const selection = document.getSelection();
  return (
    window.scrollY > 40 ||
    live.contains(document.activeElement) ||
    live.querySelector("details[open]") !== null ||
    (!selection.isCollapsed && live.contains(selection.anchorNode)) ||
    [...live.querySelectorAll("input, select, textarea")].some(isTouched)
  );
}

// Takes rows out of what came that are not in the page, and keeps those of tables that have left it: nothing moves. Returns how many
// are new; the rows of a card that is new do not count.
function withhold(fragment) {
  const selector = "tbody tr[id], article[id]";
  if (!document.querySelector(ROWS)) return 0; // what is empty has no place that could be lost
  const fresh = [...fragment.querySelectorAll(selector)].filter((row) => !element(row.id));
  const outer = fresh.filter((row) => !fresh.some((other) => other !== row && other.contains(row)));
  if (outer.length === 0) return 0;
  const bodies = [...fragment.querySelectorAll("tbody")];
  document.querySelectorAll("#live tbody").forEach((body, number) => {
    const ids = [...body.rows].map((row) => row.id).filter(Boolean);
    const counterpart = bodies.find((one) => ids.some((id) => find(one, id))) ?? bodies[number];
    if (counterpart) keepRows(body, counterpart, fragment);
  });
  for (const row of outer) row.remove();
  return outer.length;
}

function keepRows(body, counterpart, fragment) {
  let before = null;
  for (const row of body.rows) {
    let there = row.id ? find(counterpart, row.id) : null;
    if (row.id && !there && !find(fragment, row.id)) {
      there = row.cloneNode(true);
      there.classList.add("gone");
      if (before) before.after(there);
      else counterpart.prepend(there);
    }
    before = there ?? before;
  }
}

function find(place, id) {
  return place.querySelector(`[id="${CSS.escape(id)}"]`);
}

function showFresh(count) {
  const button = element("fresh");
  button.hidden = count === 0;
  button.textContent = `${count} new`;
  if (count === 0) latest = null;
}

function takeFresh() {
  const text = latest;
  if (text === null) return;
  showFresh(0);
  document.activeElement?.blur();
  window.scrollTo(0, 0);
  const live = element("live");
  isTaking = true;
  window.htmx.swap({ sourceElement: live, target: live, swap: "innerMorph", text }).finally(() => { isTaking = false; });
}

document.addEventListener("htmx:before:swap", ({ detail: { ctx, tasks } }) => {
  if (ctx.sourceElement?.id !== "live" || tasks.length === 0) return;
  const text = ctx.text;
  const count = !isTaking && isReading() ? withhold(tasks[0].fragment) : 0;
  showFresh(count);
  if (count) latest = text;
});

// --- the text of a running Turn: of Steps whose message is in the conversation by now it is left out ---

function hideStored() {
  for (const text of document.querySelectorAll(".live-text")) {
    const stored = document.querySelectorAll(`.message[data-turn="${CSS.escape(text.dataset.turn)}"]`).length;
    for (const step of text.children) step.hidden = Number(step.dataset.step) < stored;
  }
}

// --- whether the page follows ---

function showState(text, isLive) {
  const state = element("live-state");
  if (!state) return;
  state.textContent = text;
  state.classList.toggle("off", !isLive);
}

document.addEventListener("htmx:sse:after:connection", ({ target }) => target.id === "live" && showState("live", true));
document.addEventListener("htmx:sse:error", ({ target }) => target.id === "live" && showState("not connected", false));
document.addEventListener("htmx:sse:after:message", ({ target }) => {
  if (target.id !== "live") return;
  showState("live", true);
  element("live-state").title = `as of ${CLOCK.format(new Date())}`;
});

// --- the keyboard ---

// a row is what `j` and `k` go through: those in folded details are left out
function rows() {
  return [...document.querySelectorAll("main tbody tr, main article")].filter((row) => row.checkVisibility());
}

function move(step) {
  const all = rows();
  const at = all.findLastIndex((row) => row.contains(document.activeElement));
  const row = all[Math.min(all.length - 1, Math.max(0, at + step))];
  row?.querySelector("a, summary, button")?.focus();
}

function rowInFocus() {
  return rows().findLast((row) => row.contains(document.activeElement));
}

// unfolds a form of the row, and goes to its first field, else to its button: Enter sends it
function unfold(ending) {
  const details = rowInFocus()?.querySelector(`details.ask[id$="/${ending}"]`);
  if (!details) return;
  details.open = true;
  details.querySelector("form input:not([type=hidden]), form textarea, form button")?.focus();
}

function back() {
  const details = document.activeElement?.closest("#live details[open], main details[open]");
  if (details) {
    details.open = false;
    details.querySelector("summary").focus();
  } else document.querySelector(".crumbs a")?.click();
}

function copy(text, button) {
  navigator.clipboard?.writeText(text).then(() => {
    if (!button) return;
    button.classList.add("done");
    setTimeout(() => button.classList.remove("done"), 1500);
  });
}

const KEYS = {
  "/": () => element("search").focus(),
  j: () => move(1),
  k: () => move(-1),
  a: () => unfold("approve"),
  d: () => unfold("deny"),
  n: takeFresh,
  c: () => {
    const button = rowInFocus()?.querySelector("[data-copy]");
    if (button) copy(button.dataset.copy, button);
  },
  "?": () => element("help").showModal(),
  Escape: back,
};

document.addEventListener("keydown", (event) => {
  if (element("help").open || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.closest("input, textarea, select")) {
    if (event.key === "Escape") {
      if (event.target.closest("details[open]")) back();
      else event.target.blur();
    }
    return;
  }
  const act = KEYS[event.key];
  if (!act) return;
  event.preventDefault();
  act();
});

document.addEventListener("click", ({ target }) => {
  const button = target.closest("button");
  if (button?.dataset.copy) copy(button.dataset.copy, button);
  else if (button?.id === "theme") nextTheme();
  else if (button?.id === "keys") element("help").showModal();
  else if (button?.id === "fresh") takeFresh();
});

// What comes from the server knows neither what is unfolded here nor how long ago a time is by now.
window.htmx?.registerExtension("console", {
  htmx_before_morph_attr: (_, { attrName }) => attrName !== "open",
  htmx_before_morph_node: (_, { oldNode, newNode }) => !(oldNode.matches?.("time") && oldNode.dateTime === newNode.dateTime),
});

showTheme();
showTimes();
document.querySelector(".rail [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
setInterval(showTimes, 1000);
document.addEventListener("htmx:after:swap", () => {
  showTimes();
  showApprovals();
  hideStored();
});
