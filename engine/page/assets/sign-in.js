// Exchanges a key for the cookie of the page.
const problem = document.getElementById("problem");
document.getElementById("sign-in").addEventListener("submit", async (event) => {
  event.preventDefault();
  problem.textContent = "";
  try {
    const response = await fetch("/sign-in", { method: "POST", headers: { "X-Flow-Key": document.getElementById("key").value.trim() } });
    if (response.ok) return location.replace("/");
    problem.textContent = response.status === 403 ? "This is not a key of the page." : `status ${response.status}`;
  } catch (error) {
    problem.textContent = error.message;  // such as a key with letters that no header may have
  }
});
