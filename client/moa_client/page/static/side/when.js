// When something was, as one says it: its day, and when on that day.

const MINUTE = 60_000;
const clock = new Intl.DateTimeFormat("en", { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
const weekday = new Intl.DateTimeFormat("en", { weekday: "long" });
const month = new Intl.DateTimeFormat("en", { month: "long", year: "numeric" });
const date = new Intl.DateTimeFormat("en", { day: "numeric", month: "short" });

/** @param {number} now @param {number} days */
const midnight = (now, days) => new Date(new Date(now).setHours(0, 0, 0, 0)).setDate(new Date(now).getDate() - days);

/**
 * The day, or the month if it is a week ago.
 * @param {number} then in milliseconds since 1970
 * @param {number} now
 * @returns {string}
 */
export function dayWords(then, now) {
  if (then >= midnight(now, 0)) return "Today";
  if (then >= midnight(now, 1)) return "Yesterday";
  return then >= midnight(now, 6) ? weekday.format(then) : month.format(then);
}

/**
 * When it was on that day, or in that month.
 * @param {number} then in milliseconds since 1970
 * @param {number} now
 * @returns {string}
 */
export function whenWords(then, now) {
  if (now - then < MINUTE) return "now";
  if (now - then < 60 * MINUTE) return `${Math.floor((now - then) / MINUTE)} min ago`;
  return then >= midnight(now, 6) ? clock.format(then) : date.format(then);
}
