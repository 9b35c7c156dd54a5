// What scrolls can be reached by keyboard, and the search has a name.
document$.subscribe(() => setTimeout(() => {
  for (const region of document.querySelectorAll(".md-typeset__scrollwrap, .md-content p:has(> img)")) {
    if (region.scrollWidth > region.clientWidth) region.tabIndex = 0
  }
  document.querySelector(".md-search").ariaLabel = "Search"
}))
