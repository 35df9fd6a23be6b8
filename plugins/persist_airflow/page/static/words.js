// Numbers and times as text.
const LOCAL = new Intl.DateTimeFormat("en-GB", { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", timeZoneName: "short" });
const DAY = 86400000, LAST_ISO = 253402300799999;

// ISO in UTC if it is a clock time; counters stay numbers. null is a closed frontier.
export function time(ms) {
  if (ms === null || ms === undefined) return "closed";
  if (ms < DAY || ms > LAST_ISO) return String(ms);
  const iso = new Date(ms).toISOString();
  return iso.endsWith(".000Z") ? iso.replace(".000Z", "Z") : iso;
}

// The same without a T, a Z and fractions of a second, for places that say that it is UTC.
export function clock(ms) {
  return time(ms).replace("T", " ").replace(/(\.\d{3})?Z$/, "");
}

// The time without fractions of a second, and the reader's own time beside it; the exact one is in the title.
export function timeElement(ms, now) {
  const text = time(ms), element = document.createElement("time");
  element.textContent = text.replace(/\.\d{3}Z$/, "Z");
  if (ms !== null && ms >= DAY && ms <= LAST_ISO) {
    element.dateTime = text;
    element.title = `${text}, ${ms} ms` + (now ? `, ${duration(now - ms)} ${now >= ms ? "ago" : "ahead"}` : "");
    const local = new Date(ms);
    if (local.getTimezoneOffset() !== 0) {
      const own = document.createElement("span");
      own.className = "local";
      own.textContent = LOCAL.format(local);
      element.append(" ", own);
    }
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
export function alertValue(alert, value) {
  return alert.unit === "ms" ? duration(value) : count(value);
}
