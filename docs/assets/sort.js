// Click on the head of a table's column to sort by it: numbers by their leading value (0.88 [0.85, 0.91], 25.6 k),
// largest first.
{
  const UNITS = { k: 1e3, M: 1e6, G: 1e9 };
  const value = (cell) => {
    const text = cell.textContent.trim().replace(/^none$/, "0"); // a cost of nothing
    const found = text.match(/^([-+]?[\d.,]+)(?:\s*([kMG])\b)?/);
    return found ? parseFloat(found[1].replace(/,/g, "")) * (UNITS[found[2]] ?? 1) : NaN;
  };
  function sortable(table) {
    table.querySelectorAll("thead th").forEach((head, column) => {
      head.classList.add("sortable");
      head.addEventListener("click", () => {
        const descending = head.getAttribute("aria-sort") !== "descending";
        const rows = [...table.tBodies[0].rows];
        const at = (row) => row.cells[column];
        const numeric = rows.some((row) => !isNaN(value(at(row))));
        rows.sort((a, b) => {
          const sign = descending ? 1 : -1;
          if (!numeric) return sign * at(a).textContent.localeCompare(at(b).textContent);
          const [x, y] = [value(at(a)), value(at(b))];
          return isNaN(x) - isNaN(y) || sign * (y - x); // what is not measured comes last, in either direction
        });
        table.querySelectorAll("th").forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", descending ? "descending" : "ascending");
        table.tBodies[0].append(...rows);
      });
    });
  }
  if (/\/results\//.test(location.pathname)) document.querySelectorAll("article table").forEach(sortable);
}
