const folded = () => document.querySelectorAll("main details");
document.querySelectorAll("nav button").forEach((button) => {
  button.hidden = false;
  button.addEventListener("click", () => folded().forEach((one) => { one.open = button.value === "open"; }));
});
