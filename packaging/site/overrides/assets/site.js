// What scrolls sideways can be reached and scrolled by keyboard, in every browser.
addEventListener("load", () => {
  for (const one of document.querySelectorAll(".md-typeset__scrollwrap, pre > code"))
    if (one.scrollWidth > one.clientWidth) one.tabIndex = 0;
});
