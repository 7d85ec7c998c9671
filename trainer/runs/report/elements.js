// Elements of a run's report: texts, lists, tables to sort, filter and turn. Texts go in as text nodes only.
"use strict";
const elements = (() => {
  const PAGE = 25;

  const known = (value) => value !== null && value !== undefined;
  function el(name, options, ...children) {
    const made = document.createElement(name);
    const { kind, ...rest } = options || {};
    if (kind) made.className = kind;
    for (const [key, value] of Object.entries(rest)) made.setAttribute(key, value);
    made.append(...children.filter((one) => known(one) && one !== ""));
    return made;
  }
  const order = new Intl.Collator("en", { numeric: true });
  const whole = (value) => Number(value).toLocaleString("en");
  const counted = (number, noun) => `${whole(number)} ${noun}${number === 1 ? "" : "s"}`;
  const money = (value) => !known(value) ? "–" : value && Math.abs(value) < .01 ? `$${value.toPrecision(2)}` : `$${value.toFixed(2)}`;
  const between = (low, high) => money(low) === money(high) ? money(low) : `${money(low)} to ${money(high)}`;
  const percent = (value) => known(value) ? `${value > 0 ? "+" : ""}${(100 * value).toFixed(1)} %` : "–";
  const minute = (text) => String(text || "").slice(0, 19).replace("T", " ");
  const bytes = (value) => value >= 1e6 ? `${(value / 1e6).toFixed(1)} MB` : `${whole(value)} B`;
  function duration(seconds) {
    const all = Math.round(seconds), hours = Math.floor(all / 3600), minutes = Math.floor(all % 3600 / 60);
    return (hours ? `${hours}h` : "") + (minutes ? `${minutes}m` : "") + (all % 60 || !all ? `${all % 60}s` : "");
  }
  function list(rows) {
    return el("dl", {}, ...rows.flatMap(([label, value]) => [el("dt", {}, label), el("dd", {}, value)]));
  }
  // Columns: {title, beside (the title, where room is), of, key, number, name, less (not on a phone), rare (on a wide screen and paper only)}.
  const kindOf = (column) => ["number", "less", "rare", "name"].filter((one) => column[one]).join(" ");
  const titleOf = ({ title, beside }) => [title, beside && el("span", { kind: "rare" }, ` ${beside}`)];
  const cells = (columns, row) => columns.map((column) => el("td", { kind: kindOf(column) }, column.of(row)));
  function table(columns, rows) {
    const head = columns.map((column) => el("th", { kind: kindOf(column) }, ...titleOf(column)));
    const body = rows.map((row) => el("tr", {}, ...cells(columns, row)));
    return el("div", { kind: "wide" }, el("table", {}, el("thead", {}, el("tr", {}, ...head)), el("tbody", {}, ...body)));
  }
  function more({ total, rows }, noun) {
    return total > rows.length ? el("p", {}, `and ${whole(total - rows.length)} more ${noun} in the receipt`) : null;
  }
  function folded(title, ...children) {
    return el("details", {}, el("summary", {}, title), ...children);
  }

  // A table to sort by its heads, filter by text and turn page by page.
  function browser(columns, all, { pick, words, chosen }) {
    const state = { text: "", page: 0, sort: null, down: false };
    const filter = el("input", { type: "search", placeholder: "filter", "aria-label": "filter" });
    const [back, on] = [el("button", { type: "button" }, "‹ previous"), el("button", { type: "button" }, "next ›")];
    const place = el("span", {}), body = el("tbody", {});
    const heads = columns.map((column) => {
      const button = el("button", { type: "button" }, ...titleOf(column));
      button.addEventListener("click", () => {
        state.down = state.sort === column ? !state.down : Boolean(column.number);
        Object.assign(state, { sort: column, page: 0 });
        draw();
      });
      return el("th", { kind: kindOf(column) }, button);
    });
    function ordered() {
      const found = state.text ? all.filter((row) => words(row).toLowerCase().includes(state.text)) : all;
      if (!state.sort) return found;
      const sign = state.down ? -1 : 1, { key } = state.sort;
      return [...found].sort((one, other) => {
        const [a, b] = [key(one), key(other)];
        if (!known(a) || !known(b)) return known(a) ? -1 : known(b) ? 1 : 0;
        return sign * (typeof a === "number" && typeof b === "number" ? a - b : order.compare(a, b));
      });
    }
    function draw() {
      const found = ordered(), pages = Math.max(1, Math.ceil(found.length / PAGE));
      state.page = Math.min(Math.max(0, state.page), pages - 1);
      heads.forEach((head, number) => {
        if (columns[number] === state.sort) head.setAttribute("aria-sort", state.down ? "descending" : "ascending");
        else head.removeAttribute("aria-sort");
      });
      body.replaceChildren(...found.slice(state.page * PAGE, (state.page + 1) * PAGE).map((row) => {
        const line = el("tr", { ...(pick ? { tabindex: "0" } : {}), kind: pick && row === chosen() ? "chosen" : "" }, ...cells(columns, row));
        if (pick) {
          line.addEventListener("click", () => pick(row));
          line.addEventListener("keydown", (event) => { if (event.key === "Enter") pick(row); });
        }
        return line;
      }));
      const last = Math.min(found.length, (state.page + 1) * PAGE);
      place.textContent = found.length ? `${whole(state.page * PAGE + 1)} to ${whole(last)} of ${whole(found.length)}` : "none";
      [back.disabled, on.disabled] = [state.page === 0, state.page === pages - 1];
    }
    filter.addEventListener("input", () => { Object.assign(state, { text: filter.value.trim().toLowerCase(), page: 0 }); draw(); });
    back.addEventListener("click", () => { state.page -= 1; draw(); });
    on.addEventListener("click", () => { state.page += 1; draw(); });
    draw();
    const bar = all.length > 8 ? el("div", { kind: "bar-row" }, filter, ...(all.length > PAGE ? [back, place, on] : [])) : "";
    const made = el("div", {}, bar, el("div", { kind: "wide" }, el("table", {}, el("thead", {}, el("tr", {}, ...heads)), body)));
    return { made, draw };
  }

  return { el, known, whole, counted, money, between, percent, minute, bytes, duration, list, table, more, folded, browser };
})();
