// Rows as of a time, with a slider over commits; changes between two times; what differs between two states; errors. Each
// is read page by page.
import { get } from "./api.js";
import { actionButton } from "./actions.js";
import { alertBox, h, muted, table } from "./dom.js";
import { count, time } from "./words.js";

const LIMIT = 50;
const UNORDERED = "missing_order"; // the kind of errors that only `persist resolve` removes
const SHORT = { _persist_kind: "kind", _persist_time: "time", _persist_diff: "diff", _persist_err_kind: "kind", _persist_err_position: "position", _persist_err_key: "key", _persist_err_message: "message", _persist_err_payload: "payload" };

const GROUPS = [{ name: "count", number: true }, { name: "kind" }, { name: "message" }, { name: "position", title: "of the first" }];

// Times that can be read: each commit's last, from `since` on.
function timesOf(shard, commits) {
  return commits.filter((c) => c.upper !== null && c.upper - 1 >= (shard.since ?? 0)).map((c) => c.upper - 1);
}

// The panel of "rows", "changes", "differences" or "errors".
export function rowsPanel(shard, commits, what) {
  const keys = shard.schema.key;
  const latest = shard.upper === null ? "" : time(shard.upper - 1);
  let times = timesOf(shard, commits);
  const asOf = h("input", { type: "text", value: latest, size: 24, spellcheck: "false" });
  const after = h("input", { type: "text", value: times.length > 1 ? time(times.at(-2)) : "", size: 24, spellcheck: "false" });
  const slider = h("input", { type: "range", min: 0 }), withSlider = h("label", { class: "wide" }, "Commit ", slider);
  const isChanges = what === "changes", isDiff = what === "differences", ofErrors = h("input", { type: "checkbox" });
  // All errors are read: their keys may not be typed. So are all differences.
  const inputs = what === "errors" || isDiff ? [] : keys.map((column) => h("input", { type: "text", size: 14, "aria-label": `key column ${column.name}` }));
  const result = h("div", { "aria-live": "polite" });
  const keyFields = h("span", { class: "keys" }, "Key ", keys.map((column, i) => h("label", {}, `${column.name} `, inputs[i])));
  let offset = 0, reading = 0, isUsed = false, shownAt;

  // The slider goes to the last commit that is not after the time.
  const slideTo = (at) => {
    shownAt = at;
    slider.max = Math.max(times.length - 1, 0);
    slider.value = Math.max(times.filter((each) => each <= at).length - 1, 0);
    withSlider.hidden = times.length < 2;
    say();
  };
  const say = () => { slider.setAttribute("aria-valuetext", times.length ? `as of ${time(times[slider.value])}` : ""); };
  const load = async () => {
    const mine = ++reading;
    result.setAttribute("aria-busy", "true");
    const texts = inputs.map((input) => input.value), first = texts.indexOf(""), key = first < 0 ? texts : texts.slice(0, first);
    const place = { conn_id: shard.conn_id, shard: shard.shard, offset, limit: LIMIT }, common = { ...place, as_of: asOf.value.trim() };
    const asked = isDiff ? { ...place, a: after.value.trim(), b: asOf.value.trim() } : isChanges ? { ...common, key, after: after.value.trim(), errors: ofErrors.checked ? 1 : 0 } : { ...common, key };
    const name = isChanges && ofErrors.checked ? "changes of errors" : what;
    let shown;
    try {
      if (texts.slice(key.length).some(Boolean)) throw new Error(`Fill the key column ${keys[first].name} too: a key is looked up by its first columns.`);
      shown = pageOf(shard, await get(what, asked), name, (to) => { isUsed = true; offset = to; load(); });
    } catch (error) {
      shown = alertBox(error.message);
    }
    if (mine === reading) { result.replaceChildren(shown); result.setAttribute("aria-busy", "false"); }
  };
  const fresh = () => { offset = 0; return load(); };
  let waiting = 0;
  slider.addEventListener("input", () => {
    shownAt = times[slider.value];
    asOf.value = time(shownAt);
    after.value = slider.value > 0 ? time(times[slider.value - 1]) : time(Math.max(shard.since ?? 0, 0));
    say();
    clearTimeout(waiting);
    waiting = setTimeout(fresh, 200);
  });
  ofErrors.addEventListener("change", fresh);
  const form = h("form", { class: "controls", oninput: () => { isUsed = true; }, onsubmit: (event) => { event.preventDefault(); isUsed = true; fresh(); } },
    (isChanges || isDiff) && h("label", {}, isDiff ? "From " : "After ", after),
    h("label", {}, isDiff ? "To " : "As of ", asOf),
    withSlider,
    inputs.length > 0 && keyFields,
    isChanges && h("label", {}, ofErrors, " of errors"),
    h("button", { type: "submit" }, "Read"));
  slideTo(shard.upper === null ? Infinity : shard.upper - 1);
  return {
    element: h("section", { id: what, "aria-label": what }, isDiff && muted("Each is a time, a checkpoint, a fork, or an earlier generation: ", h("code", {}, `persist generations ${shard.shard}`)), form, result),
    load: fresh,
    // Shows the contents as of a time.
    pick: (at) => {
      isUsed = true;
      asOf.value = time(at);
      slideTo(at);
      fresh();
    },
    // True once a user has chosen what it shows, or is about to.
    isUsed: () => isUsed || form.contains(document.activeElement),
    // Newer facts: what the user has chosen stays, and the slider leads to the new commits too. It stays as it is if they
    // could not be read.
    update: (newer, newerCommits) => {
      shard = newer;
      if (newerCommits) times = timesOf(newer, newerCommits);
      slideTo(shownAt);
    },
  };
}

function pageOf(shard, page, what, turn) {
  const columns = page.columns.map((column) => ({ name: SHORT[column.name] ?? column.name, title: column.type, number: /int|decimal|double|float/.test(column.type), head: column.is_key }));
  const rows = page.rows.map((row) => row.map((value, i) => cell(value, page.columns[i].name)));
  const last = page.offset + page.rows.length;
  const range = page.rows.length ? `${count(page.offset + 1)} to ${count(last)} of ${count(page.total)}` : `0 of ${count(page.total)}`;
  const when = page.after === null ? `as of ${time(page.as_of)}` : `after ${time(page.after)} through ${time(page.as_of)}`;
  return h("div", {},
    h("p", { role: "status", class: "muted" }, `${range} ${what} ${page.said ?? when}`),
    page.groups?.length > 1 && table("errors in groups", GROUPS, page.groups.map((group) => GROUPS.map((column) => group[column.name] ?? "")), {}),
    rows.length > 0 && table(`${what} ${when}`, columns, rows, { hasCaption: false }),
    what === "errors" && hasUnordered(page) && h("div", {}, `No record removes errors of kind ${UNORDERED}. If the records count, deliver them again with an order. Then remove the errors: `,
      h("code", {}, `persist resolve ${shard.shard} --all`), " ", actionButton(shard, "Resolve", "resolve", { at: "*", dry_run: true })),
    h("div", { class: "controls" },
      h("button", { type: "button", disabled: page.offset === 0, onclick: () => turn(Math.max(page.offset - LIMIT, 0)) }, "Previous page"),
      h("button", { type: "button", disabled: last >= page.total, onclick: () => turn(last) }, "Next page")));
}

function hasUnordered(page) {
  const kind = page.columns.findIndex((column) => column.name === "_persist_err_kind");
  return page.rows.some((row) => row[kind] === UNORDERED);
}

function cell(value, name) {
  if (value === null) return h("span", { class: "muted" }, "null");
  if (typeof value === "object") return h("code", { title: "bytes that are not text, in hexadecimal" }, value.hex);
  if (name === "_persist_time") return h("span", { title: `${value} ms` }, time(value));
  if (name === "_persist_diff") return value > 0 ? `+${value}` : String(value);
  return name === "_persist_err_payload" || name === "_persist_err_key" ? h("code", {}, value) : String(value);
}
