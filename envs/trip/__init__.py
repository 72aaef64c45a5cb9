"""The trip family: book the cheapest flights, and a hotel, out of a small market."""
