"""What is measured of each question, wherever it is, and put together afterwards."""
