// Bars over commits or batches, as SVG. The numbers are in the table below, so the drawing itself is one image.
import { h, svg } from "./dom.js";

const WIDTH = 640, HEIGHT = 120, TOP = 8;

// `series` are {name, kind, values}; `labels` has a text for each bar; `show` makes text of a number; `things` are what
// the bars stand for.
export function bars(title, series, labels, show, pick, things = "commits") {
  const totals = labels.map((_, i) => series.reduce((sum, each) => sum + (each.values[i] ?? 0), 0));
  const highest = Math.max(...totals, 0), width = WIDTH / Math.max(labels.length, 1);
  const drawn = labels.map((label, i) => {
    let below = HEIGHT;
    const parts = series.map((each) => `${each.name} ${show(each.values[i] ?? 0)}`);
    const stack = series.map((each) => {
      const size = highest ? ((each.values[i] ?? 0) / highest) * (HEIGHT - TOP) : 0;
      below -= size;
      return size > 0 && svg("rect", { class: each.kind, x: i * width, y: below, width: Math.max(width - (width > 3 ? 1 : 0), 0.5), height: size });
    });
    return svg("g", { onclick: () => pick?.(i) },
      svg("rect", { class: "hit", x: i * width, y: 0, width, height: HEIGHT }), stack, svg("title", {}, `${label}: ${parts.join(", ")}`));
  });
  const summary = `${title}: ${labels.length} ${things}, at most ${show(highest)}`;
  return h("figure", {},
    h("figcaption", {}, h("strong", {}, title), ` at most ${show(highest)} `,
      series.length > 1 && series.map((each) => h("span", { class: `legend ${each.kind}` }, each.name))),
    svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": summary, preserveAspectRatio: "none" },
      svg("line", { class: "axis", x1: 0, y1: HEIGHT, x2: WIDTH, y2: HEIGHT }), drawn));
}
