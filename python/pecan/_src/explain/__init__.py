"""Why steps run in their order: the request, the explanation as an object, and how it is shown."""
