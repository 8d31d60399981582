/** Light or dark: as the system has it, until somebody chooses. */

import { h, put, svg } from "./dom.js";

const THEME = "restd-theme";
const root = document.documentElement;
const system = matchMedia("(prefers-color-scheme: dark)");
/** @type {Set<() => void>} */
const watchers = new Set();

/** Whether colours are dark now. */
export const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);

/** Call a function whenever the colours change. @param {() => void} call */
export const onTheme = (call) => watchers.add(call);

/** Take what was chosen before. */
export function restoreTheme() {
  const chosen = localStorage.getItem(THEME);
  if (chosen === "dark" || chosen === "light") root.dataset.theme = chosen;
  system.addEventListener("change", () => watchers.forEach((call) => call()));
}

/** @returns {HTMLElement} the button that changes between light and dark */
export function themeButton() {
  const button = h("button", { type: "button", class: "icon-button", on: { click: change } });
  function change() {
    root.dataset.theme = isDark() ? "light" : "dark";
    localStorage.setItem(THEME, root.dataset.theme);
    watchers.forEach((call) => call());
  }
  function draw() {
    const label = isDark() ? "Use light colours" : "Use dark colours";
    button.setAttribute("aria-label", label);
    button.title = label;
    put(button, isDark() ? sun() : moon());
  }
  onTheme(draw);
  draw();
  return button;
}

const frame = { viewBox: "0 0 24 24", class: "icon", "aria-hidden": "true" };
const moon = () => svg("svg", frame, svg("path", { d: "M20 14.5A8.5 8.5 0 0 1 9.5 4a8.5 8.5 0 1 0 10.5 10.5Z" }));
const sun = () =>
  svg(
    "svg",
    frame,
    svg("circle", { cx: 12, cy: 12, r: 4 }),
    svg("path", {
      d: "M12 2.5v2M12 19.5v2M2.5 12h2M19.5 12h2M5.3 5.3l1.4 1.4M17.3 17.3l1.4 1.4M5.3 18.7l1.4-1.4M17.3 6.7l1.4-1.4",
    }),
  );
