"""What is seen of one run of a script, from inside its process; `single_run` judges the record."""
