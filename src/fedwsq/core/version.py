"""The version of this software; `fedwsq --version` prints it."""

VERSION = "0.1.0"
