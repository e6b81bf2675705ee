"use strict";
// The live part of the page. Values go in as text, never as HTML.

const REFRESH_MS = 700;
const MOST_TRIES = 30;
const machines = [...document.querySelectorAll("#machines li")];

async function refresh() {
  try {
    const status = await (await fetch("/status.json", { cache: "no-store" })).json();
    showStock(status.products);
    showLocks(status.locks, status.store);
    machines.forEach((item) => showMachine(item, status.orders[item.dataset.name] || 0));
  } catch {
    // This machine is down: the list of machines says so.
  }
  machines.forEach(ping);
  setTimeout(refresh, REFRESH_MS);
}

function showStock(products) {
  for (const product of products) {
    for (const shown of document.querySelectorAll(".stock")) {
      if (shown.dataset.sku === product.sku) shown.textContent = product.stock;
    }
  }
}

function showLocks(locks, store) {
  const body = document.querySelector("#locks tbody");
  body?.replaceChildren(...locks.map(lockRow));
  const quiet = document.querySelector("#quiet");
  if (quiet) quiet.textContent = store || (locks.length ? "" : "none held");
}

function lockRow(lock) {
  const row = document.createElement("tr");
  const state = lock.stuck ? `STUCK: ${lock.stuck}` : lock.state;
  row.className = lock.stuck ? "stuck" : "";
  for (const value of [lock.name, state, lock.owner, lock.age, lock.left, lock.waiters]) {
    row.insertCell().textContent = value ?? "";
  }
  return row;
}

function showMachine(item, orders) {
  item.dataset.orders = `${orders} order${orders === 1 ? "" : "s"}`;
}

async function ping(item) {
  const shown = item.querySelector("span");
  try {
    await fetch(`${item.dataset.url}/ping`, { cache: "no-store" });
    shown.textContent = `up, ${item.dataset.orders || ""}`;
    shown.className = "up";
  } catch {
    shown.textContent = "down";
    shown.className = "down";
  }
}

// Come again when the shop says so: the first click is still under way.
async function post(url, body) {
  for (let tries = 1; ; tries += 1) {
    const answer = await fetch(url, {
      method: "POST",
      body,
      credentials: "include",
      headers: { Accept: "application/json" },
    });
    const seconds = Number(answer.headers.get("Retry-After"));
    if (!seconds || tries === MOST_TRIES) return answer;
    await new Promise((resolve) => setTimeout(resolve, seconds * 1000));
  }
}

const tally = { answers: 0, orders: 0, replays: 0, others: 0 };

async function order(form, url) {
  const who = document.querySelector("#who b").textContent;
  let status = 0;
  let text;
  let replayed = false;
  try {
    const answer = await post(url, new URLSearchParams(new FormData(form)));
    replayed = answer.headers.get("Idempotent-Replayed") === "true";
    status = answer.status;
    text = `${status} ${(await answer.text()).slice(0, 200)}`;
  } catch {
    text = "no answer";
  }
  note(`${who} at ${new URL(url, location.href).host}: ${text}`, replayed);
  count(status, replayed);
}

function count(status, replayed) {
  tally.answers += 1;
  if (replayed) tally.replays += 1;
  else if (status === 201) tally.orders += 1;
  else tally.others += 1;
  const { answers, orders, replays, others } = tally;
  document.querySelector("#summary").textContent =
    `${answers} answers: ${orders} new, ${replays} replayed, ${others} not taken`;
}

function note(text, replayed) {
  const item = document.createElement("li");
  item.textContent = text + (replayed ? " (replayed)" : "");
  item.className = replayed ? "replayed" : "";
  document.querySelector("#answers")?.append(item);
}

function tenClicks(form) {
  for (let click = 0; click < 10; click += 1) {
    order(form, `${machines[click % machines.length].dataset.url}/orders/`);
  }
}

// Log in or out, and keep the forms with their order IDs. What is new is the token of the session.
async function become(form, button) {
  const answer = await fetch(form.action, {
    method: "POST",
    body: new URLSearchParams(new FormData(form, button)),
  });
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const token = page.querySelector("form.buy .csrf").value;
  for (const field of document.querySelectorAll(".csrf")) field.value = token;
  document.querySelector("#who").replaceWith(page.querySelector("#who"));
}

document.addEventListener("submit", (event) => {
  if (!event.target.closest("#who")) return;
  event.preventDefault();
  become(event.target, event.submitter);
});

for (const form of document.querySelectorAll("form.buy")) {
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    order(form, event.submitter?.getAttribute("formaction") || form.action);
  });
  form.querySelector(".ten")?.addEventListener("click", () => tenClicks(form));
}
if (document.querySelector("#locks")) refresh();
