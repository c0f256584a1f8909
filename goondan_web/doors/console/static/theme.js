// Runs before the page is painted: the theme that was chosen in this browser, and whether there are scripts at all.
"use strict";

const THEMES = ["auto", "light", "dark"];

function chosenTheme() {
  try {
    return THEMES.find((one) => one === localStorage.getItem("goondan-theme")) ?? "auto";
  } catch {
    return "auto"; // the browser keeps nothing for this page
  }
}

document.documentElement.dataset.theme = chosenTheme();
document.documentElement.classList.add("has-scripts");
