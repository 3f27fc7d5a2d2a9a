"""What is behind the public modules of Pecan; nothing here is meant to be imported from outside."""
