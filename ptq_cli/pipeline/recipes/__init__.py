"""Recipes as files: a new one for a model, what is wrong in one, and their schema for editors."""
