/** A scatter plot on a canvas: thousands of points, zoom, drag, and the point that is meant. */

import { hue } from "./dom.js";
import { isDark } from "./theme.js";

/** @typedef {{ x: number, y: number, code: number, item: string, title: string }} Point */

const MARGIN = 28;
const NEAR = 14;

export class MapCanvas {
  /** @type {Point[]} */
  points = [];
  /** @type {{ x: number, y: number } | null} */
  query = null;
  /** @type {Map<string, number>} ranks of results, by item */
  ranks = new Map();
  /** @type {number | null} the first code that is highlighted */
  code = null;
  /** @type {Point | null} */
  meant = null;
  zoom = 1;
  shift = { x: 0, y: 0 };
  #box = { left: 0, top: 0, width: 1, height: 1 };

  /** @param {HTMLCanvasElement} canvas */
  constructor(canvas) {
    this.canvas = canvas;
    this.context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
    new ResizeObserver(() => this.draw()).observe(canvas);
  }

  /** @param {Point[]} points */
  show(points) {
    this.points = points;
    const xs = points.map((point) => point.x);
    const ys = points.map((point) => point.y);
    const least = (/** @type {number[]} */ values) => values.reduce((one, other) => Math.min(one, other), Infinity);
    const most = (/** @type {number[]} */ values) => values.reduce((one, other) => Math.max(one, other), -Infinity);
    const [left, top] = [least(xs), least(ys)];
    this.#box = { left, top, width: most(xs) - left || 1, height: most(ys) - top || 1 };
    this.reset();
  }

  reset() {
    this.zoom = 1;
    this.shift = { x: 0, y: 0 };
    this.draw();
  }

  /** @param {{ x: number, y: number }} point @returns {[number, number]} */
  place({ x, y }) {
    const { clientWidth: width, clientHeight: height } = this.canvas;
    const { left, top, width: across, height: down } = this.#box;
    const scale = Math.min((width - 2 * MARGIN) / across, (height - 2 * MARGIN) / down) * this.zoom;
    return [
      width / 2 + (x - left - across / 2) * scale + this.shift.x,
      height / 2 - (y - top - down / 2) * scale + this.shift.y,
    ];
  }

  /** @param {number} factor @param {number} x @param {number} y what stays where it is, in pixels */
  zoomAt(factor, x = this.canvas.clientWidth / 2, y = this.canvas.clientHeight / 2) {
    const zoom = Math.min(40, Math.max(0.7, this.zoom * factor));
    const own = zoom / this.zoom;
    const [cx, cy] = [x - this.canvas.clientWidth / 2, y - this.canvas.clientHeight / 2];
    this.shift = { x: cx - (cx - this.shift.x) * own, y: cy - (cy - this.shift.y) * own };
    this.zoom = zoom;
    this.draw();
  }

  /** The point nearest to a place on the canvas. @param {number} x @param {number} y @returns {Point | null} */
  near(x, y) {
    let best = null;
    let least = NEAR * NEAR;
    for (const point of this.points) {
      if (this.code !== null && point.code !== this.code) continue;
      const [px, py] = this.place(point);
      const distance = (px - x) ** 2 + (py - y) ** 2;
      if (distance < least) [best, least] = [point, distance];
    }
    return best;
  }

  draw() {
    const { canvas, context } = this;
    const { clientWidth: width, clientHeight: height } = canvas;
    if (!width || !height) return;
    const dense = devicePixelRatio || 1;
    if (canvas.width !== Math.round(width * dense)) canvas.width = Math.round(width * dense);
    if (canvas.height !== Math.round(height * dense)) canvas.height = Math.round(height * dense);
    context.setTransform(dense, 0, 0, dense, 0, 0);
    context.clearRect(0, 0, width, height);
    const radius =
      Math.min(5, Math.max(1.6, 90 / Math.sqrt(this.points.length || 1))) * Math.sqrt(Math.min(this.zoom, 4));
    const [light, chroma] = isDark() ? [0.74, 0.11] : [0.6, 0.13];
    for (const point of this.points) {
      const [x, y] = this.place(point);
      if (x < -9 || y < -9 || x > width + 9 || y > height + 9) continue;
      const isOut = this.code !== null && point.code !== this.code;
      context.globalAlpha = isOut ? 0.1 : this.ranks.size && !this.ranks.has(point.item) ? 0.45 : 0.8;
      context.fillStyle = `oklch(${light} ${chroma} ${hue(point.code)})`;
      context.beginPath();
      context.arc(x, y, radius, 0, 7);
      context.fill();
    }
    context.globalAlpha = 1;
    this.#drawMarks(radius);
  }

  /** Results as rings with their ranks, the query as a cross, the meant point as a bold ring. @param {number} radius */
  #drawMarks(radius) {
    const { context } = this;
    const style = getComputedStyle(this.canvas);
    const [ink, accent, paper] = ["--ink", "--accent", "--surface"].map((name) => style.getPropertyValue(name).trim());
    context.font = "600 11px system-ui, sans-serif";
    context.lineWidth = 1.5;
    for (const point of this.points) {
      const rank = this.ranks.get(point.item);
      if (rank === undefined && point !== this.meant) continue;
      const [x, y] = this.place(point);
      context.strokeStyle = ink;
      context.lineWidth = point === this.meant ? 2.5 : 1.5;
      context.beginPath();
      context.arc(x, y, radius + 3, 0, 7);
      context.stroke();
      if (rank !== undefined) this.#label(String(rank), x + radius + 5, y - radius - 2, ink, paper);
    }
    if (!this.query) return;
    const [x, y] = this.place(this.query);
    for (const [colour, wide] of /** @type {[string, number][]} */ ([
      [paper, 7],
      [accent, 3],
    ])) {
      context.strokeStyle = colour;
      context.lineWidth = wide;
      context.lineCap = "round";
      context.beginPath();
      for (const [dx, dy] of [
        [9, 0],
        [0, 9],
      ]) {
        context.moveTo(x - dx, y - dy);
        context.lineTo(x + dx, y + dy);
      }
      context.stroke();
    }
    this.#label("query", x + 13, y + 4, accent, paper);
  }

  /** @param {string} text @param {number} x @param {number} y @param {string} colour @param {string} paper */
  #label(text, x, y, colour, paper) {
    const { context } = this;
    context.lineWidth = 3;
    context.strokeStyle = paper;
    context.lineJoin = "round";
    context.strokeText(text, x, y);
    context.fillStyle = colour;
    context.fillText(text, x, y);
  }
}
