"""Pecan's version. The wheel, the client and the programs take it from here."""

VERSION = "0.1.0"
