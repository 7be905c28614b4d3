// Exchanges a key for the cookie of the page.
const problem = document.getElementById("problem");
document.getElementById("sign-in").addEventListener("submit", async (event) => {
  event.preventDefault();
  problem.textContent = "";
  try {
    const response = await fetch("/sign-in", { method: "POST", headers: { "X-Flow-Key": document.getElementById("key").value.trim() } });
    if (response.ok) return location.replace("/");
    if (response.status === 403) problem.textContent = "This is not a key of the page.";
    else problem.textContent = response.status === 429 ? (await response.json()).error : `status ${response.status}`;
  } catch (error) {
    problem.textContent = error.message;  // such as a key with letters that no header may have
  }
});
