// Keys belong to the terminal from the beginning, and again whenever the page is looked at.
function take() {
  const field = document.querySelector(".xterm-helper-textarea");
  if (field) field.focus();
}
for (const moment of ["load", "focus", "click"]) window.addEventListener(moment, take);
