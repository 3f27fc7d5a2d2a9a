"""The one place that says which version of Pecan this is."""

VERSION = "0.1.0"
