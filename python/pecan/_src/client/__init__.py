"""The link to services: Pecan's shared object, Ctrl-C while TensorFlow waits, and sessions with dispatchers."""
