"""Tables, figures and the HTML page, from a run directory alone."""
