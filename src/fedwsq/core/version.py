"""The version of this software; `fedwsq --version` prints it."""

VERSION = "0.2.0.dev0"
