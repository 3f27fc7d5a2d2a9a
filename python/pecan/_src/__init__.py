"""The implementation of Pecan's public modules. Only `pecan` and its tests import from here.

| package | what it is | imports |
| --- | --- | --- |
| `errors`, `checks`, `options`, `version` | exceptions; checks of arguments; the options of a dataset | nothing below |
| `client` | the shared object (`native`), Ctrl-C (`interrupts`), sessions with dispatchers (`session`) | |
| `servers` | child processes: configuration, programs, the private cluster of a trainer | `client` |
| `dataset` | `distribute()`, the registered graph, the dataset that reads a job, resume states | `client`, `servers` |
| `explain` | `pecan.explain()` | all of them |

No module imports TensorFlow when `pecan` is imported, except those that `distribute()` loads at its first call.
"""
