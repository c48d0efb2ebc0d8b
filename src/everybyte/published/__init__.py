"""What others published, held against what is found here: articles' claims, and runs whose makers said what they took."""
