"""The HTTP server: answers questions with the champion, swaps to a new one while it runs."""
