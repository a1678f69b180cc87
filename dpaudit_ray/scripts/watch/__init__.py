"""What is seen of one run of a script, from inside its process.

Nothing here judges: every part writes down what it saw (`recorder`), and the looks at it are apart
(`scripts.looks`). A run that carries no canary ends with the same parameters, to the bit, as one
that nobody watches: what is tried at a step is tried on copies, and every generator is put back.
"""
