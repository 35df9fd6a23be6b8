// Elements from facts. Facts only ever become text nodes and attribute values, so no fact can become markup.

export function h(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [attribute, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (attribute.startsWith("on")) element.addEventListener(attribute.slice(2), value);
    else element.setAttribute(attribute, value === true ? "" : String(value));
  }
  element.append(...present(children));
  return element;
}

function present(children) {
  return children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false);
}

export function replaceMain(...children) {
  const main = document.getElementById("main");
  main.replaceChildren(...present(children));
  main.setAttribute("aria-busy", "false");
}

export function muted(...children) {
  return h("p", { class: "muted" }, children);
}

export function alertBox(...children) {
  return h("div", { class: "alert", role: "alert" }, children);
}

// A column of numbers, for `table`.
export function number(name, title) {
  return { name, number: true, title };
}

// A table. `columns` are {name, number?, title?, head?}; `rows` are lists of text, numbers or elements. Its caption can
// be left to screen readers if the text before it says the same.
export function table(caption, columns, rows, { empty = "none", hasCaption = true, kind = "" } = {}) {
  if (!rows.length) return muted(empty);
  const head = columns.map((c) => h("th", { scope: "col", class: c.number && "number", title: c.title }, c.name));
  const body = rows.map((row) =>
    h("tr", {}, row.map((cell, i) => h(columns[i].head ? "th" : "td", { scope: columns[i].head && "row", class: columns[i].number && "number", "data-label": columns[i].name }, cell ?? ""))));
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    h("table", { class: kind }, h("caption", { class: !hasCaption && "hidden" }, caption), h("thead", {}, h("tr", {}, head)), h("tbody", {}, body)));
}

export function section(id, title, ...children) {
  return h("section", { id, "aria-labelledby": `${id}-title` }, h("h2", { id: `${id}-title` }, title), ...children);
}

// A long table opens on demand.
export function folded(summary, rows, whole) {
  return rows.length > 12 ? h("details", {}, h("summary", {}, summary), whole) : whole;
}

// What `show` makes of an answer, or the error that came instead of it.
export function orAlert(body, show) {
  return body.failed ? alertBox(body.failed) : show(body);
}

export function badge(text, kind = "") {
  return h("span", { class: `badge ${kind}` }, text);
}
