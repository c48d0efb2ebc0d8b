"""What others published, held against what is found here: articles' claims, and runs whose memory was published."""
