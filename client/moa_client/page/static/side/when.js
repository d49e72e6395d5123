// How long ago something was, as one says it.

const MINUTE = 60_000;
const DAY = 24 * 60 * MINUTE;
const clock = new Intl.DateTimeFormat("en", { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
const weekday = new Intl.DateTimeFormat("en", { weekday: "long" });
const date = new Intl.DateTimeFormat("en", { day: "numeric", month: "short", year: "numeric" });

/**
 * @param {number} then in milliseconds since 1970
 * @param {number} now
 * @returns {string}
 */
export function whenWords(then, now) {
  if (now - then < MINUTE) return "now";
  if (now - then < 60 * MINUTE) return `${Math.floor((now - then) / MINUTE)} min ago`;
  const midnight = new Date(now).setHours(0, 0, 0, 0);
  if (then >= midnight) return clock.format(then);
  if (then >= midnight - DAY) return "yesterday";
  if (then >= midnight - 6 * DAY) return weekday.format(then);
  return date.format(then);
}
