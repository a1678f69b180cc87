"""What is seen of one run of a script, from inside its process.

Nothing here judges: every part writes down what it saw, and `single_run` and its neighbours judge
the record. What is tried at a step is tried on copies, and every generator is put back.
"""
