// What scrolls can be reached by keyboard, and the search has a name.
document$.subscribe(() => setTimeout(() => {
  for (const region of document.querySelectorAll("pre > code, .md-typeset__scrollwrap")) region.tabIndex = 0
  document.querySelector(".md-search").ariaLabel = "Search"
}))
