// Starts Swagger UI. The script element carries the address of the OpenAPI description.
SwaggerUIBundle({
  url: document.currentScript.dataset.openapi,
  dom_id: "#swagger-ui",
  layout: "BaseLayout",
  deepLinking: true,
  showExtensions: true,
  showCommonExtensions: true,
  validatorUrl: null, // the default calls a server of Swagger's makers
  presets: [SwaggerUIBundle.presets.apis, SwaggerUIBundle.SwaggerUIStandalonePreset],
});
