// The calendar of days: one cell for each day of the shard's time zone, in columns of weeks, and what is known of the day that is chosen.
import { h, muted, table } from "./dom.js";
import { runLink } from "./links.js";
import { bytes, count, timeElement } from "./words.js";

const STATES = {
  loaded: ["", "commits cover the day"],
  late: ["↻", "files of the day came after it was covered"],
  corrected: ["±", "a restore changed the shard on this day"],
  missing: ["–", "no commit covers the day, or it has no file"],
  failed: ["!", "the day's dag run failed"],
  unknown: ["?", "older commits than those read here cover the day"],
  open: ["·", "the day is not over, or its run is not due"],
};

// `view` remembers the date that a user has chosen.
export function calendar(shard, body, pick, view) {
  if (!body.days.length) return muted("No days: the shard has no commit yet, or its times are not clock times.");
  const detail = h("div", { class: "day-detail", "aria-live": "polite" });
  const choose = (day) => {
    view.date = day.date;
    for (const [i, each] of cells.entries()) each.setAttribute("aria-pressed", String(body.days[i] === day));
    detail.replaceChildren(...describe(shard, body, day, pick));
  };
  const cells = body.days.map((day) => cell(day, () => choose(day)));
  const chosen = body.days.find((day) => day.date === view.date);
  if (chosen) choose(chosen);
  const weekday = (day) => (new Date(day.date).getUTCDay() + 6) % 7;
  const columns = [];
  for (const [i, day] of body.days.entries()) {
    if (!columns.length || weekday(day) === 0) columns.push({ month: "", cells: Array.from({ length: 7 }, () => h("span", { class: "day none" })) });
    const date = new Date(day.date);
    if (i === 0 || date.getUTCDate() === 1) columns.at(-1).month = date.toLocaleDateString("en-US", { month: "short", year: i === 0 || date.getUTCMonth() === 0 ? "numeric" : undefined, timeZone: "UTC" });
    columns.at(-1).cells[weekday(day)] = cells[i];
  }
  const counts = Object.keys(STATES).map((state) => [state, body.days.filter((day) => day.state === state).length]);
  const known = body.days.reduce((sum, day) => sum + day.commits, 0);
  return h("div", { class: "calendar" },
    known < shard.commits && muted(`Of the newest ${count(known)} commits of ${count(shard.commits)}; older ones are under History.`),
    body.timezone !== "UTC" && muted(`Days of ${body.timezone}.`),
    h("p", { class: "legend-line" }, counts.filter(([, number]) => number).map(([state, number]) =>
      h("span", { class: "legend-item", title: STATES[state][1] }, h("span", { class: `day ${state}`, "aria-hidden": "true" }, STATES[state][0]), ` ${state} ${count(number)}`))),
    h("div", { class: "scroll weeks", role: "group", "aria-label": `The last ${body.days.length} days`, tabindex: "0" },
      columns.map((column) => h("div", { class: "week" }, h("span", { class: "month" }, column.month), column.cells))),
    detail);
}

function cell(day, choose) {
  const [mark] = STATES[day.state], files = `${count(day.files_total)} files`;
  return h("button", {
    type: "button", class: `day ${day.state}`, "aria-pressed": "false", onclick: choose, title: `${day.date}: ${day.state}, ${files}`, "aria-label": `${day.date}: ${day.state}, ${files}`,
  }, mark || new Date(day.date).getUTCDate());
}

function describe(shard, body, day, pick) {
  if (day.state === "unknown") return [h("h3", {}, `${day.date}: unknown`), h("p", {}, `${STATES.unknown[1]}.`)];
  const run = body.airflow.failed_runs[day.day_ms];
  const facts = `${count(day.inserts)} inserts, ${count(day.updates)} updates, ${count(day.deletes)} deletes, ${count(day.errors)} errors in ${count(day.commits)} commits`;
  const columns = [{ name: "File", head: true }, { name: "Size", number: true }, { name: "Consumed" }, { name: "Came" }];
  const rows = day.files.map((file) => [file.name, bytes(file.size_bytes), timeElement(file.committed_ms, shard.now_ms), file.is_late ? "late" : "in time"]);
  const more = day.files_total - day.files.length;
  return [
    h("h3", {}, `${day.date}: ${day.state}`),
    h("p", {}, `${STATES[day.state][1]}. ${facts}. `, run && ["The dag run: ", runLink(run[0], run[1], run[1])]),
    table(`Files of ${day.date}`, columns, rows, { empty: "No files." }),
    more > 0 && muted(`and ${count(more)} more files`),
    pick && shard.upper !== null && day.end_ms <= shard.upper && day.day_ms >= (shard.since ?? 0)
      && h("button", { type: "button", onclick: () => pick(day.end_ms - 1) }, "Rows at the end of this day"),
  ].filter(Boolean);
}
