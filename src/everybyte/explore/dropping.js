// ---- what pages share that take a reader's file -----------------------------------------------------------------

const paragraph = (className, ...pieces) => element("p", "", { className }, ...pieces);

// A table of words; in place of a cell's words may stand the cell.
function tabled(caption, columns, rows) {
  const heads = columns.map((words) => (words ? element("th", words, { scope: "col" }) : element("td")));
  const table = element("table", "", {}, element("caption", caption), element("thead", "", {}, element("tr", "", {}, ...heads)), element("tbody"));
  for (const [first, ...cells] of rows) {
    table.tBodies[0].insertRow().append(element("th", first, { scope: "row" }), ...cells.map((cell) => (cell instanceof Node ? cell : element("td", cell))));
  }
  return table;
}

// Hands on a file that is chosen, or dropped anywhere; the text field keeps a text that is moved into it.
function taking(root, take) {
  const [file, drop, text] = ["file", "drop", "text"].map((id) => root.querySelector(`#${id}`));
  file.addEventListener("change", () => { if (file.files[0]) take(file.files[0]); file.value = ""; });
  const dragged = (event) => {
    if (event.target === text && !event.dataTransfer?.types.includes("Files")) return;
    event.preventDefault();
    drop.classList.toggle("over", event.type === "dragover");
    const given = event.type === "drop" && event.dataTransfer.files[0];
    if (given) take(given);
  };
  for (const name of ["dragover", "dragleave", "drop"]) root.addEventListener(name, dragged);
}

