// Swagger UI on this server's own schema. What is tried out goes with the session, so it needs the CSRF token.

const place = document.getElementById("api");
const token = document.querySelector("[name=csrfmiddlewaretoken]").value;
const { theme } = document.documentElement.dataset;
const dark = theme ? theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
document.documentElement.classList.toggle("dark-mode", dark);

window.SwaggerUIBundle({
  domNode: place,
  url: place.dataset.schema,
  deepLinking: true,
  docExpansion: "list",
  defaultModelsExpandDepth: 0,
  validatorUrl: null, // the public validator would be told about this server
  requestInterceptor: (request) => {
    const ours = new URL(request.url, location.href).origin === location.origin;
    if (ours && (request.method ?? "GET").toUpperCase() !== "GET") request.headers["X-CSRFToken"] = token;
    return request;
  },
});
