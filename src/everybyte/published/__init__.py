"""Compare published numbers with this library's: articles' claims, and the memory of published runs."""
