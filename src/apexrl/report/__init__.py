"""What a person sees of a run: the live panel and the curves."""
