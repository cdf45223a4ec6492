"use strict";
(() => {
  document.documentElement.classList.remove("nojs");
  const value = (row, index) => {
    const cell = row.cells[index];
    return cell.dataset.value ?? cell.textContent.trim();
  };
  const compare = (left, right) => {
    // Cells without a value come last, whatever the direction.
    if (left === "" || right === "") return left === right ? 0 : left === "" ? 2 : -2;
    const [a, b] = [Number(left), Number(right)];
    if (!Number.isNaN(a) && !Number.isNaN(b)) return Math.sign(a - b);
    return Math.sign(left.localeCompare(right, "en", { numeric: true, sensitivity: "base" }));
  };
  for (const table of document.querySelectorAll("table.sortable")) {
    const heads = [...table.tHead.rows[0].cells];
    const body = table.tBodies[0];
    const original = [...body.rows];
    heads.forEach((head, index) => {
      head.querySelector("button")?.addEventListener("click", () => {
        const next = { none: "ascending", ascending: "descending", descending: "none" }[head.getAttribute("aria-sort") ?? "none"];
        for (const other of heads) if (other.hasAttribute("aria-sort")) other.setAttribute("aria-sort", "none");
        head.setAttribute("aria-sort", next);
        const rows = [...original];
        if (next !== "none") {
          const turn = next === "ascending" ? 1 : -1;
          rows.sort((a, b) => {
            const order = compare(value(a, index), value(b, index));
            return Math.abs(order) === 2 ? order : order * turn;
          });
        }
        body.append(...rows);
      });
    });
  }

  const table = document.getElementById("verdicts-table");
  if (!table) return;
  const text = document.getElementById("filter-text");
  const verdict = document.getElementById("filter-verdict");
  const scope = document.getElementById("filter-scope");
  const every = document.getElementById("filter-every");
  const shown = document.getElementById("filter-shown");
  const tiles = [...document.querySelectorAll(".tiles button")];
  const rows = [...table.tBodies[0].rows];
  const apply = () => {
    const words = text.value.toLowerCase().split(/\s+/).filter(Boolean);
    let count = 0;
    for (const row of rows) {
      const content = row.textContent.toLowerCase();
      const visible =
        words.every((word) => content.includes(word)) &&
        (verdict.value === "" || row.dataset.verdict === verdict.value) &&
        (scope.value === "" || row.dataset.scope === scope.value) &&
        (every.checked || row.dataset.leading === "yes");
      row.hidden = !visible;
      count += visible ? 1 : 0;
    }
    shown.textContent = `${count} of ${rows.length} verdicts shown`;
    for (const tile of tiles) {
      tile.setAttribute("aria-pressed", String(verdict.value === tile.value && scope.value === tile.dataset.scope));
    }
  };
  for (const control of [text, verdict, scope, every]) {
    control.addEventListener("input", apply);
    control.addEventListener("change", apply);
  }
  for (const tile of tiles) {
    tile.addEventListener("click", () => {
      const pressed = tile.getAttribute("aria-pressed") === "true";
      verdict.value = pressed ? "" : tile.value;
      scope.value = pressed ? "" : tile.dataset.scope;
      apply();
    });
  }
  document.getElementById("filter-reset").addEventListener("click", () => {
    text.value = "";
    verdict.value = "";
    scope.value = "";
    every.checked = false;
    apply();
  });
  apply();

  let closed = [];
  addEventListener("beforeprint", () => {
    closed = [...document.querySelectorAll("details:not([open])")];
    for (const part of closed) part.open = true;
  });
  addEventListener("afterprint", () => {
    for (const part of closed) part.open = false;
  });
})();
