"""The schemes that packed forests are compared with."""
