// From disk a page may not read its neighbors, so the search gives titles without excerpts there.
if (location.protocol === "file:" && typeof DOCUMENTATION_OPTIONS !== "undefined")
  DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;

// What scrolls sideways is reached by keyboard.
addEventListener("load", () => {
  for (const wide of document.querySelectorAll("pre, div.math, .cell_output .output, .table-wrapper"))
    if (wide.scrollWidth > wide.clientWidth) wide.tabIndex = 0;
});

// The theme's captions say that they are headings, and not of which level.
for (const caption of document.querySelectorAll("p.caption[role=heading]")) caption.setAttribute("aria-level", "2");
