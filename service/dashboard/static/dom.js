// Building elements. Data from the API is only ever set as text or as an attribute, never as HTML.

const SVG = "http://www.w3.org/2000/svg";

function fillElement(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return element;
}

export const h = (tag, attributes = {}, ...children) => fillElement(document.createElement(tag), attributes, children);
export const s = (tag, attributes = {}, ...children) => fillElement(document.createElementNS(SVG, tag), attributes, children);
// A box for content that may be wider than the page: it scrolls on its own, also with the arrow keys.
export const makeScroller = (name, attributes, ...children) =>
  h("div", { tabindex: 0, role: "region", "aria-label": name, ...attributes, class: `scroll ${attributes.class ?? ""}`.trim() }, ...children);
export const makeTable = (heads, rows, numbers = []) => makeScroller(heads.join(", "), {}, h("table", {},
  h("thead", {}, h("tr", {}, heads.map((head, i) => h("th", { scope: "col", class: numbers.includes(i) ? "number" : null }, head)))),
  h("tbody", {}, rows.map((row) => h("tr", {}, row.map((cell, i) => h("td", { class: numbers.includes(i) ? "number" : null }, cell)))))));
export const $ = (selector, within = document) => within.querySelector(selector);

export function notify(message, bad = false) {
  const place = $("#toast");
  place.className = bad ? "bad" : "";
  place.textContent = message;
  if (!bad) setTimeout(() => { if (place.textContent === message) place.textContent = ""; }, 6000);
}

// Replace an element's children, keeping those that did not change so that focus and selection stay where they are.
export function updateChildren(place, nodes) {
  while (place.childNodes.length > nodes.length) place.lastChild.remove();
  nodes.forEach((node, i) => {
    const old = place.childNodes[i];
    if (!old) place.append(node); else if (!old.isEqualNode(node)) old.replaceWith(node);
  });
}

// Turn the parts of a text in `backticks` into code elements.
export const markCode = (text) => text.split(/`([^`]+)`/).map((part, i) => (i % 2 ? h("code", {}, part) : part));

export const formatNumber = (value, digits = 3) =>
  value === null || value === undefined ? "–" : value.toLocaleString(undefined, { maximumSignificantDigits: digits });
export const formatInteger = (value) => value.toLocaleString();
export const formatTime = (text) => new Date(text).toLocaleString();
