"""What the verbs do: imported when one runs, since torch takes seconds to come in."""
