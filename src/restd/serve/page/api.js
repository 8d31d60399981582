/** The service: one function that asks it, problems as sentences, and the key of this tab. */

const KEY = "restd-key";

/** What the service refused, or that it could not be reached (status 0). */
export class Problem extends Error {
  /**
   * @param {number} status
   * @param {string} message
   * @param {string | null} [field]
   * @param {number | null} [retryAfter] seconds
   */
  constructor(status, message, field = null, retryAfter = null) {
    super(message);
    this.status = status;
    this.field = field;
    this.retryAfter = retryAfter;
  }

  /** What kind of problem it is, in a few words. */
  get title() {
    const titles = {
      0: "The service cannot be reached",
      401: "A key is needed",
      403: "This key may not do that",
      404: "There is no such thing",
      429: "The service is busy",
      503: "The model is not ready",
      504: "The answer took too long",
    };
    return (
      titles[/** @type {0} */ (this.status)] ?? (this.status < 500 ? "That is not possible" : "The service failed")
    );
  }
}

/** The key of this tab; it is never part of an address. */
export const key = {
  get: () => sessionStorage.getItem(KEY) ?? "",
  /** @param {string} value */
  set: (value) => sessionStorage.setItem(KEY, value),
};

/**
 * Ask the service.
 * @param {string} path
 * @param {{ query?: Record<string, any>, body?: any, signal?: AbortSignal }} [options] With a body it is a POST.
 * @returns {Promise<any>} The values, with `milliseconds` (of the model, and in all) under `timing`.
 */
export async function ask(path, { query, body, signal } = {}) {
  const started = performance.now();
  const parameters = new URLSearchParams();
  for (const [name, value] of Object.entries(query ?? {})) {
    for (const one of Array.isArray(value) ? value : [value]) parameters.append(name, String(one));
  }
  const address = parameters.size ? `${path}?${parameters}` : path;
  /** @type {Record<string, string>} */
  const headers = key.get() ? { Authorization: `Bearer ${key.get()}` } : {};
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let response;
  try {
    const method = body === undefined ? "GET" : "POST";
    response = await fetch(address, {
      method,
      headers,
      signal,
      body: body === undefined ? null : JSON.stringify(body),
    });
  } catch (error) {
    if (/** @type {Error} */ (error).name === "AbortError") throw error;
    throw new Problem(0, "No answer came back. Check that restd serve is running and that the network is up.");
  }
  const values = await response.json().catch(() => null);
  if (!response.ok || values === null) {
    const seconds = Number(response.headers.get("Retry-After"));
    const unkeyed = response.status === 401 && !key.get();
    const message = unkeyed
      ? "This service answers only those who have one. Ask whoever runs it."
      : (values?.error?.message ?? `The answer has the status ${response.status} and cannot be read.`);
    throw new Problem(response.status, message, values?.error?.field ?? null, seconds || null);
  }
  values.timing = {
    all: performance.now() - started,
    model: Number(response.headers.get("X-Restd-Compute-Ms")) || null,
  };
  return values;
}

/** Runs one request at a time: a newer one cancels the older, whose answer is dropped. */
export class Latest {
  /** @type {AbortController | null} */
  #controller = null;

  /**
   * @template T
   * @param {(signal: AbortSignal) => Promise<T>} work
   * @param {(answer: T) => void} done
   * @param {(problem: Problem) => void} failed
   */
  async run(work, done, failed) {
    this.#controller?.abort();
    const own = new AbortController();
    this.#controller = own;
    try {
      const answer = await work(own.signal);
      if (this.#controller === own) done(answer);
    } catch (error) {
      if (this.#controller !== own || /** @type {Error} */ (error).name === "AbortError") return;
      if (!(error instanceof Problem)) throw error;
      failed(error);
    }
  }

  /** Drop whatever is under way. */
  stop() {
    this.#controller?.abort();
    this.#controller = null;
  }
}
