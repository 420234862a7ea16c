"""What is checked about a draft, one module for each check, and the run over all of them."""
