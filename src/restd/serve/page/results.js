/** A ranked list: titles, Semantic IDs, scores and their parts. */

import { h, hiddenText, number, sidChips } from "./dom.js";
import { partsBar } from "./parts.js";

/** @typedef {import("./app.js").App} App */

const COLUMNS = 4;
const LONGEST = 80;
const SKIPPED = ["id", "title", "description", "text"];

/** Columns that a list shows under the titles. @param {any} model */
export const listedColumns = (model) =>
  model.columns.filter((/** @type {string} */ name) => !SKIPPED.includes(name)).slice(0, COLUMNS);

/** A value of a column as text. @param {any} value */
export function valueText(value) {
  if (value === null || value === undefined || value === "") return "";
  if (Array.isArray(value)) return value.join(" › ");
  return typeof value === "number" ? number(value, Number.isInteger(value) ? 0 : 2) : String(value);
}

/**
 * The same for a list: a number with its name, the last name of a path, the beginning of a long text.
 * @param {string} name
 * @param {any} value
 */
function shortText(name, value) {
  const text = valueText(Array.isArray(value) ? value.at(-1) : value);
  if (typeof value === "number") return `${name} ${text}`;
  return text.length > LONGEST ? `${text.slice(0, LONGEST).trimEnd()}…` : text;
}

/**
 * @param {App} app
 * @param {any[]} hits
 * @returns {HTMLElement}
 */
export function resultList(app, hits) {
  const fused = hits.some((hit) => hit.parts);
  const most = Math.max(...hits.map((hit) => Number(hit.score)), 1e-9);
  return h(
    "ol",
    { class: "hits" },
    hits.map((hit, place) => row(app, hit, place + 1, fused ? most : 0)),
  );
}

/** @param {App} app @param {any} hit @param {number} rank @param {number} most */
function row(app, hit, rank, most) {
  const values = Object.entries(hit.fields)
    .map(([name, value]) => shortText(name, value))
    .filter(Boolean);
  return h(
    "li",
    { class: "hit", data: { item: hit.item } },
    h("span", { class: "rank", "aria-hidden": "true" }, String(rank)),
    h(
      "div",
      { class: "hit-body" },
      h(
        "h3",
        {},
        app.link(
          { view: "why", item: hit.item },
          { class: "hit-title" },
          hit.title || hit.item,
          hiddenText(`, rank ${rank}. Why?`),
        ),
      ),
      h(
        "p",
        { class: "meta" },
        values.map((value) => h("span", {}, value)),
      ),
      h("p", { class: "ids" }, sidChips(hit.sid), detailButton(app, hit)),
    ),
    h(
      "div",
      { class: "hit-score" },
      h("span", { class: "score" }, hiddenText("Score "), number(hit.score, 3)),
      hit.parts && Object.keys(hit.parts).length > 0 && partsBar(hit.parts, most),
    ),
  );
}

/** @param {App} app @param {any} hit */
function detailButton(app, hit) {
  const label = `Details of ${hit.title || hit.item}`;
  const open = () => app.go({ show: hit.item });
  return h("button", { type: "button", class: "quiet detail", "aria-label": label, on: { click: open } }, "Details");
}

/** Grey rows while there is nothing yet. @param {number} count */
export function skeleton(count) {
  return h(
    "ol",
    { class: "hits", "aria-hidden": "true" },
    Array.from({ length: count }, () =>
      h(
        "li",
        { class: "hit waiting" },
        h("span", { class: "rank" }),
        h("div", { class: "hit-body" }, h("i"), h("i"), h("i")),
      ),
    ),
  );
}
