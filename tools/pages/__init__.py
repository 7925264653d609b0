"""The pages of the documentation: their blocks of code, the folders that these run in, and their sessions."""
