"use strict";
(() => {
  // A table that is wider than the screen can be scrolled by keyboard.
  const reach = () => {
    for (const region of document.querySelectorAll(".scroll:not([role])")) {
      if (region.checkVisibility() && region.scrollWidth > region.clientWidth) region.tabIndex = 0;
      else region.removeAttribute("tabindex");
    }
  };
  window.addEventListener("resize", reach);
  document.addEventListener("toggle", reach, true);
  reach();
  const body = document.querySelector("#layer-table tbody");
  if (body) {
    const heads = [...document.querySelectorAll("#layer-table thead th")];
    const rows = [...body.rows];
    const texts = new Map(rows.map((row) => [row, row.textContent.toLowerCase()]));
    const search = document.getElementById("search");
    const kind = document.getElementById("kind");
    const count = document.getElementById("count");
    const key = (row, column, numeric) => {
      const cell = row.cells[column];
      return numeric ? Number(cell.dataset.k) : cell.textContent.trim().toLowerCase();
    };
    const order = (column, ascending) => {
      const numeric = heads[column].classList.contains("num");
      const missing = (value) => numeric && value >= 1e98;
      const sorted = rows.map((row, index) => ({ row, index, key: key(row, column, numeric) }));
      sorted.sort((a, b) => {
        // Rows without a number come last in both directions.
        if (missing(a.key) !== missing(b.key)) return missing(a.key) ? 1 : -1;
        if (a.key === b.key) return a.index - b.index;
        return (a.key < b.key ? -1 : 1) * (ascending ? 1 : -1);
      });
      body.append(...sorted.map((item) => item.row));
      heads.forEach((head, index) => {
        const said = index === column ? (ascending ? "ascending" : "descending") : "none";
        head.setAttribute("aria-sort", said);
      });
    };
    heads.forEach((head, column) => {
      head.querySelector("button").addEventListener("click", () => {
        order(column, head.getAttribute("aria-sort") !== "ascending");
      });
    });
    const filter = () => {
      const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      for (const row of rows) {
        const fits = words.every((word) => texts.get(row).includes(word));
        row.hidden = !(fits && (!kind.value || row.dataset.kind === kind.value));
        shown += row.hidden ? 0 : 1;
      }
      count.textContent = `${shown} of ${rows.length} layers`;
    };
    search.addEventListener("input", filter);
    kind.addEventListener("change", filter);
    document.getElementById("tools").hidden = false;
    filter();
    const reveal = () => {
      const found = location.hash.startsWith("#") && document.getElementById(location.hash.slice(1));
      if (!found) return;
      if (found.tagName === "DETAILS") {
        found.open = true;
        found.querySelector("summary").focus();
      } else if (found.tagName === "TR" && found.hidden) {
        search.value = kind.value = "";
        filter();
      }
      found.scrollIntoView({ block: "center" });
    };
    window.addEventListener("hashchange", reveal);
    reveal();
  }
})();
