// Elements. Whatever comes from the API is set as text or as an attribute: never as HTML.

const SVG = "http://www.w3.org/2000/svg";

function made(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return element;
}

export const h = (tag, attributes = {}, ...children) => made(document.createElement(tag), attributes, children);
export const s = (tag, attributes = {}, ...children) => made(document.createElementNS(SVG, tag), attributes, children);
// What may be too wide for the page: it scrolls by itself, also with the arrow keys.
export const scroller = (name, attributes, ...children) =>
  h("div", { tabindex: 0, role: "region", "aria-label": name, ...attributes, class: `scroll ${attributes.class ?? ""}`.trim() }, ...children);
export const $ = (selector, within = document) => within.querySelector(selector);

export function tell(message, bad = false) {
  const place = $("#told");
  place.className = bad ? "bad" : "";
  place.textContent = message;
  if (!bad) setTimeout(() => { if (place.textContent === message) place.textContent = ""; }, 6000);
}

// New content for a place, keeping every child that looks as before: focus and selection stay where they are.
export function settle(place, nodes) {
  while (place.childNodes.length > nodes.length) place.lastChild.remove();
  nodes.forEach((node, i) => {
    const old = place.childNodes[i];
    if (!old) place.append(node); else if (!old.isEqualNode(node)) old.replaceWith(node);
  });
}

// Text in which `backticks` mark what a machine reads.
export const coded = (text) => text.split(/`([^`]+)`/).map((part, i) => (i % 2 ? h("code", {}, part) : part));

export const number = (value, digits = 3) =>
  value === null || value === undefined ? "–" : value.toLocaleString(undefined, { maximumSignificantDigits: digits });
export const whole = (value) => value.toLocaleString();
export const percent = (value) => (value === null || value === undefined ? "–" : `${(100 * value).toFixed(0)} %`);
export const when = (text) => new Date(text).toLocaleString();
