// Numbers and times as text.
const DAY = 86400000, LAST_ISO = 253402300799999;

// ISO in UTC if it is a clock time; counters stay numbers. null is a closed frontier.
export function time(ms) {
  if (ms === null || ms === undefined) return "closed";
  if (ms < DAY || ms > LAST_ISO) return String(ms);
  const iso = new Date(ms).toISOString();
  return iso.endsWith(".000Z") ? iso.replace(".000Z", "Z") : iso;
}

// The time without fractions of a second; the exact one is in the title.
export function timeElement(ms, now) {
  const text = time(ms), element = document.createElement("time");
  element.textContent = text.replace(/\.\d{3}Z$/, "Z");
  if (ms !== null && ms >= DAY && ms <= LAST_ISO) {
    element.dateTime = text;
    element.title = `${text}, ${ms} ms` + (now ? `, ${duration(now - ms)} ${now >= ms ? "ago" : "ahead"}` : "");
  }
  return element;
}

export function duration(ms) {
  const units = [["d", DAY], ["h", 3600000], ["min", 60000], ["s", 1000]];
  const size = Math.abs(ms);
  for (const [i, [name, length]] of units.entries()) {
    if (size >= length) {
      const whole = Math.floor(size / length), rest = i + 1 < units.length ? Math.floor((size % length) / units[i + 1][1]) : 0;
      return rest && whole < 10 ? `${whole} ${name} ${rest} ${units[i + 1][0]}` : `${whole} ${name}`;
    }
  }
  return `${size} ms`;
}

export function bytes(size) {
  if (size === null || size === undefined) return "unknown";
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let i = 0;
  while (size >= 1024 && i + 1 < units.length) { size /= 1024; i += 1; }
  return i ? `${size.toFixed(1)} ${units[i]}` : `${size} B`;
}

export function count(number) {
  return number === null || number === undefined ? "unknown" : number.toLocaleString("en-US");
}

export function seconds(number) {
  return `${number < 10 ? number.toFixed(1) : Math.round(number)} s`;
}

// The value or limit of an alert: a duration or a count.
export function alertValue(condition, value) {
  return condition === "freshness" || condition === "stash_age" ? duration(value) : count(value);
}

export const ATTENTION = {
  unreadable: ["unreadable", "The state can't be read: run persist fsck"],
  errors: ["errors", "Records that could not be decoded are alive"],
  conflicts: ["conflicts", "Appends were lost in the last 7 days; no data was"],
  future_upper: ["upper in the future", "The shard accepts nothing before its upper"],
  behind: ["behind", "The upper is behind the DAG's schedule"],
  failed: ["last run failed", "The newest dag run of a DAG that writes the shard failed"],
  paused: ["paused", "A DAG that writes the shard is paused"],
};
