/** Elements, numbers and small helpers. Text from the service only ever becomes text nodes and attributes. */

const SVG = "http://www.w3.org/2000/svg";

/**
 * Make an HTML element.
 * @param {string} tag
 * @param {Record<string, any>} [attributes] `on` has listeners, `vars` CSS custom properties, `data` data attributes;
 *   null, undefined and false are left out.
 * @param {...any} children Nodes, texts, or lists of them; null and false are left out.
 * @returns {any}
 */
export function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/**
 * Make an SVG element.
 * @param {string} tag
 * @param {Record<string, any>} [attributes]
 * @param {...any} children
 * @returns {any}
 */
export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

/**
 * @param {any} element
 * @param {Record<string, any>} attributes
 * @param {any[]} children
 */
function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") {
      for (const [event, listener] of Object.entries(value)) element.addEventListener(event, listener);
    } else if (name === "vars") {
      for (const [property, own] of Object.entries(value)) element.style.setProperty(property, String(own));
    } else if (name === "data") {
      for (const [key, own] of Object.entries(value)) element.dataset[key] = String(own);
    } else {
      element.setAttribute(name, value === true ? "" : String(value));
    }
  }
  element.append(
    ...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false),
  );
  return element;
}

/**
 * Replace what an element contains.
 * @param {Element} element
 * @param {...any} children
 */
export function put(element, ...children) {
  const nodes = children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false);
  element.replaceChildren(...nodes);
}

/** Text for screen readers alone. @param {string} text */
export const hiddenText = (text) => h("span", { class: "visually-hidden" }, text);

/**
 * A number as people read it.
 * @param {number | null | undefined} value
 * @param {number} [digits] after the point
 */
export function number(value, digits = 0) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const options = { minimumFractionDigits: digits, maximumFractionDigits: digits };
  return value.toLocaleString("en", options).replace("-", "−");
}

/**
 * A share as per cent.
 * @param {number | null | undefined} value
 * @param {number} [digits]
 */
export const percent = (value, digits = 1) =>
  Number.isFinite(value) ? `${number(100 * Number(value), digits)} %` : "–";

/** @param {number} count @param {string} one @param {string} [many] */
export const counted = (count, one, many = `${one}s`) => `${number(count)} ${count === 1 ? one : many}`;

/**
 * Hue of a code: neighbours in number are far apart in colour.
 * @param {number} code
 */
export const hue = (code) => Math.round((code * 137.508 + 25) % 360);

/**
 * A Semantic ID as a row of coloured codes.
 * @param {number[]} sid
 */
export function sidChips(sid) {
  const chips = sid.map((code) => h("span", { class: "chip", vars: { "--hue": hue(code) } }, String(code)));
  return h("span", { class: "sid" }, hiddenText("Semantic ID "), chips);
}

/**
 * Call a function once it has not been asked for during some time.
 * @template {any[]} T
 * @param {(...values: T) => void} call
 * @param {number} milliseconds
 */
export function debounced(call, milliseconds) {
  let timer = 0;
  const later = (/** @type {T} */ ...values) => {
    clearTimeout(timer);
    timer = window.setTimeout(() => call(...values), milliseconds);
  };
  later.cancel = () => clearTimeout(timer);
  return later;
}

/**
 * Move the focus among elements with the arrow keys.
 * @param {KeyboardEvent} event
 * @param {HTMLElement[]} elements
 * @returns {boolean} whether the event was used
 */
export function moveFocus(event, elements) {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  const place = elements.indexOf(/** @type {HTMLElement} */ (document.activeElement));
  if (step === undefined || place < 0) return false;
  const next = elements[place + step];
  if (!next) return false;
  event.preventDefault();
  next.focus();
  return true;
}
