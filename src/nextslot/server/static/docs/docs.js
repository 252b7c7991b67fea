// Shows /openapi.json. Where the server wants a key, it is asked for and sent with every request of this page.
const form = document.getElementById("ask");
const stored = "nextslot-key";

function headers() {
  const key = sessionStorage.getItem(stored);
  return key ? { "X-API-Key": key } : {};
}

async function show() {
  const answer = await fetch("openapi.json", { headers: headers() });
  form.hidden = answer.status !== 401;
  if (!answer.ok) return;
  SwaggerUIBundle({
    spec: await answer.json(),
    domNode: document.getElementById("api"),
    deepLinking: true,
    validatorUrl: null,
    requestInterceptor(request) {
      Object.assign(request.headers, headers());
      return request;
    },
  });
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(stored, document.getElementById("key").value);
  show();
});

show();
