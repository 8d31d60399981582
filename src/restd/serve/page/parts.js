/** The parts of a hybrid score as bars: what the model, the words, the vectors and others add. */

import { h, number, percent } from "./dom.js";

const NAMES = {
  generator: "Generative model",
  heads: "Horizon heads",
  bm25: "BM25 (words)",
  dense: "Dense vectors",
  latent: "Aligned latents",
  sids: "Semantic IDs",
  match: "Named fields",
  popularity: "Popularity",
  sasrec: "SASRec",
  neighbours: "Neighbours",
  "co-occurrence": "Co-occurrence",
};
const ORDER = Object.keys(NAMES);
const COLOURS = 8;

/** @typedef {{ score: number | null, scaled: number, weight: number, share: number }} Part */

/** @param {string} part */
export const partName = (part) => NAMES[/** @type {"bm25"} */ (part)] ?? part;

/** @param {string} part */
function colour(part) {
  const letters = [...part].reduce((sum, letter) => sum + letter.charCodeAt(0), 0);
  return `var(--part-${((ORDER.includes(part) ? place(part) : letters) % COLOURS) + 1})`;
}

/** @param {Record<string, Part>} parts */
const ordered = (parts) => Object.entries(parts).sort(([one], [other]) => place(one) - place(other));

/** Known parts come first. @param {string} part */
const place = (part) => (ORDER.includes(part) ? ORDER.indexOf(part) : ORDER.length);

/**
 * One bar of which each piece is a part's share.
 * @param {Record<string, Part>} parts
 * @param {number} whole what a full bar stands for
 */
export function partsBar(parts, whole) {
  const pieces = ordered(parts).filter(([, part]) => part.share > 0);
  const text = pieces.map(([name, part]) => `${partName(name)} ${number(part.share, 2)}`).join(", ");
  return h(
    "div",
    { class: "parts-bar", role: "img", "aria-label": `Parts of the score: ${text}` },
    pieces.map(([name, part]) =>
      h("span", {
        title: `${partName(name)}: ${number(part.share, 3)}`,
        vars: { "--width": `${(100 * part.share) / (whole || 1)}%`, "--colour": colour(name) },
      }),
    ),
  );
}

/** What the colours stand for. @param {string[]} names */
export function partsLegend(names) {
  return h(
    "ul",
    { class: "legend", "aria-label": "Parts of a score" },
    [...names]
      .sort((one, other) => place(one) - place(other))
      .map((name) =>
        h("li", {}, h("i", { vars: { "--colour": colour(name) }, "aria-hidden": "true" }), partName(name)),
      ),
  );
}

/**
 * The parts of one item's score as a table with bars.
 * @param {Record<string, Part>} parts
 */
export function partsTable(parts) {
  const most = Math.max(...Object.values(parts).map((part) => part.weight), 1e-9);
  const total = Object.values(parts).reduce((sum, part) => sum + part.share, 0);
  const rows = ordered(parts).map(([name, part]) =>
    h(
      "tr",
      {},
      h(
        "th",
        { scope: "row" },
        h("i", { class: "swatch", vars: { "--colour": colour(name) }, "aria-hidden": "true" }),
        partName(name),
      ),
      h(
        "td",
        { class: "bar-cell" },
        h(
          "div",
          { class: "weight-bar", "aria-hidden": "true", vars: { "--width": percentOf(part.weight, most) } },
          h("span", { vars: { "--width": percentOf(part.share, part.weight), "--colour": colour(name) } }),
        ),
      ),
      h("td", {}, number(part.score, 3)),
      h("td", {}, number(part.scaled, 3)),
      h("td", {}, number(part.weight, 3)),
      h("td", {}, h("strong", {}, number(part.share, 3))),
    ),
  );
  return h(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": "Parts of the score" },
    h(
      "table",
      { class: "numbers parts-table" },
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          ["Part", "Share of its weight", "Own score", "Scaled 0–1", "Weight", "Adds"].map((text) =>
            h("th", { scope: "col" }, text),
          ),
        ),
      ),
      h("tbody", {}, rows),
      h(
        "tfoot",
        {},
        h(
          "tr",
          {},
          h("th", { scope: "row" }, "Fused score"),
          h("td", { class: "bar-cell" }),
          h("td"),
          h("td"),
          h("td"),
          h("td", {}, h("strong", {}, number(total, 3))),
        ),
      ),
    ),
  );
}

/** @param {number} value @param {number} whole */
const percentOf = (value, whole) => percent(whole ? Math.max(0, value) / whole : 0, 2).replace(" ", "");
