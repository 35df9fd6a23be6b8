// Charts over time, drawn by uPlot: hover shows the values, dragging zooms, a double click shows all again.
import { h } from "./dom.js";
import { bytes, clock, duration, time } from "./words.js";

const HEIGHT = 170, TIME_FROM = 86400000; // from here on a number is a clock time
const DAY_TEXT = new Intl.DateTimeFormat("en-US", { month: "short", day: "numeric", timeZone: "UTC" });
const HOUR = 3600000, DAYS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000].map((days) => days * TIME_FROM);
// Steps between the ticks of an axis whose units are no powers of ten.
const STEPS = new Map([
  [bytes, Array.from({ length: 50 }, (_, power) => 2 ** power)],
  [duration, [1, 10, 100, 1000, 5000, 15000, 60000, 300000, 900000, HOUR, 3 * HOUR, 6 * HOUR, 12 * HOUR, ...DAYS]],
]);
const drawn = new Set(); // charts on the page: a new theme draws them again
let groups = 0;

// A group of charts moves one cursor. `at` are times (ms) or counters, one for each value.
export function chartGroup() {
  groups += 1;
  return `persist-${groups}`;
}

// `series` are {name, color, values}; `limits` are {name, color, value}; `shape` is "bars" (stacked), "line" or "step";
// `show` makes text of a number; `pick` is called with the index that a user clicks.
export function chart(title, at, series, { shape = "bars", show = String, limits = [], pick, group = chartGroup() } = {}) {
  const totals = at.map((_, i) => (shape === "bars" ? series.reduce((sum, each) => sum + (each.values[i] ?? 0), 0) : Math.max(...series.map((each) => each.values[i] ?? 0))));
  const last = series.map((each) => `${each.name} ${valueText(each.values.at(-1), show)}`).join(", ");
  const said = `${title}: ${at.length} points from ${time(at[0])} to ${time(at.at(-1))}, at most ${show(Math.max(...totals, 0))}; last ${last}`;
  const host = h("div", { class: "plot", role: "img", "aria-label": said });
  let width = 0; // of the drawing: the legend changes the height while the cursor moves
  const again = () => { width = host.clientWidth; if (width) draw(host, at, series, { shape, show, limits, pick, group }); };
  drawn.add({ host, again });
  new ResizeObserver(() => { if (host.clientWidth !== width) again(); }).observe(host);
  return h("figure", {}, h("figcaption", {}, h("strong", {}, title)), host);
}

function valueText(value, show) {
  return value === null ? "unknown" : show(value);
}

export function drawAgain() {
  for (const each of drawn) each.host.isConnected ? each.again() : drawn.delete(each);
}

// A tick of the axis of times: days as "Nov 12", hours as "14:00".
function dateText(ms, step) {
  const date = new Date(ms).toISOString();
  return step >= TIME_FROM ? DAY_TEXT.format(ms) : date.slice(11, 16) === "00:00" ? DAY_TEXT.format(ms) : date.slice(11, 16);
}

function draw(host, at, series, options) {
  const width = host.clientWidth, style = getComputedStyle(document.documentElement);
  const color = (name) => style.getPropertyValue(name).trim();
  const isTime = at[0] >= TIME_FROM;
  // A stack is drawn from the back: each bar is as high as all below it and itself.
  const stacked = options.shape === "bars" ? series.map((_, k) => at.map((_, i) => series.slice(0, k + 1).reduce((sum, each) => sum + (each.values[i] ?? 0), 0))).reverse() : series.map((each) => each.values);
  const order = options.shape === "bars" ? [...series].reverse() : series;
  const narrow = Math.min(30, Math.max(1, (0.5 * (width - 80)) / at.length)); // after a restore two commits lie 1 ms apart
  const paths = { bars: () => uPlot.paths.bars({ size: [0.8, 30, narrow] }), step: () => uPlot.paths.stepped({ align: 1 }), line: () => uPlot.paths.linear() }[options.shape]();
  const shown = order.map((each) => ({
    label: each.name, stroke: color(each.color), fill: options.shape === "bars" ? color(each.color) : undefined, width: options.shape === "bars" ? 0 : 2,
    paths, points: { show: options.shape !== "bars" && at.length < 40, size: 5 }, value: (_, __, ___, i) => (i === null ? "" : valueText(each.values[i], options.show)),
  }));
  const limits = options.limits.map((each) => ({ label: each.name, stroke: color(each.color), dash: [6, 4], width: 1.5, points: { show: false }, value: () => options.show(each.value) }));
  const axis = { stroke: color("--muted"), grid: { stroke: color("--line"), width: 1 }, ticks: { stroke: color("--line"), width: 1 }, font: "11px system-ui, sans-serif" };
  const pad = at.length > 1 ? (at.at(-1) - at[0]) / (at.length - 1) / 2 : isTime ? TIME_FROM / 2 : 1; // half of a bar
  host.replaceChildren();
  const plot = new uPlot({
    width, height: HEIGHT, ms: 1, tzDate: (ms) => uPlot.tzDate(new Date(ms), "Etc/UTC"),
    scales: { x: { time: isTime, range: (_, low, high) => [low - pad, high + pad] }, y: { range: (_, low, high) => [Math.min(0, low ?? 0), (high || 1) * 1.08] } },
    cursor: { y: false, sync: { key: options.group }, drag: { x: true, y: false } },
    axes: [{ ...axis, space: 70, ...(isTime && { values: (_, ticks, __, ___, step) => ticks.map((tick) => dateText(tick, step)) }) }, { ...axis, size: 64, incrs: STEPS.get(options.show), values: (_, ticks) => ticks.map((tick) => options.show(tick)) }],
    series: [{ label: isTime ? "UTC" : "Upper", value: (_, value) => (value === null ? "" : isTime ? clock(value) : String(value)) }, ...shown, ...limits],
  }, [at, ...stacked, ...options.limits.map((each) => at.map(() => each.value))], host);
  if (options.pick) plot.over.addEventListener("click", () => plot.cursor.idx !== null && options.pick(plot.cursor.idx));
}
